"""A source that is read and written by functions, over a dictionary."""

from tamis import stores


def written_through(values, **options):
    """Return a `Loader` that writes to a dictionary."""

    def delete_many(keys):
        for key in keys:
            values.pop(key, None)

    return stores.Loader(
        get_many=lambda keys: [values.get(key) for key in keys],
        keys=lambda: values,
        put_many=lambda keys, new: values.update(zip(keys, new, strict=True)),
        delete_many=delete_many,
        **options,
    )
