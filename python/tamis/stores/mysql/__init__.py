"""A table in a MariaDB or MySQL database (``pip install tamis[mysql]``)."""

from tamis.stores.mysql.store import MySQL

__all__ = ["MySQL"]
