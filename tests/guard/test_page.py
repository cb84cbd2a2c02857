"""The page of a guard: what it shows in a browser, and to whom."""

import http.client
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from importlib.resources import files

import pytest
from servers import _program

import tamis
from tamis.guard import page as pages


def guard(name="users", keys=2000):
    f = tamis.Telescoping(capacity=4000, fpr=2**-4, seed=3)
    g = tamis.Guard(tamis.stores.Memory(), f, name=name)
    g.put_many((f"user{i}", "x") for i in range(keys))
    return g


def ask(g, queries=6000):
    """Look up absent keys, some of them again and again, and a few stored ones."""
    g.get_many([f"guest{i * i % 3001}" for i in range(queries)])
    g.get_many([f"user{i}" for i in range(100)])


def until(condition, seconds=30):
    for _ in range(seconds * 20):
        if found := condition():
            return found
        time.sleep(0.05)
    pytest.fail(f"did not happen within {seconds} s")


def fetch(url, path="/data", **headers):
    at = urllib.request.Request(url.partition("?")[0].rstrip("/") + path, headers=headers)
    with urllib.request.urlopen(at, timeout=30) as answer:
        return answer.read().decode(), answer.headers


def status(url, path="/data", **headers):
    with pytest.raises(urllib.error.HTTPError) as refused:
        fetch(url, path, **headers)
    refused.value.close()
    return refused.value.code


# In a browser.


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium, without a window."""
    pytest.importorskip("selenium")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = _program("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(_program("chromedriver")))
    yield driver
    driver.quit()


def emulate(browser, width, height, scheme):
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def shown(browser):
    """The numbers on the page, by their name in the statistics: raw, and as text."""
    return browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-stat]')]"
        ".map((e) => [e.dataset.stat, [e.dataset.value, e.textContent]]))"
    )


def equals(browser, stats):
    numbers = shown(browser)
    return all(
        raw == str(getattr(stats, name)) and (name in TEXTS or text == f"{getattr(stats, name):,}")
        for name, (raw, text) in numbers.items()
        if name != "rebuild_seconds"
    )


TEXTS = {"memory", "rebuild_seconds"}


def test_the_numbers_on_the_page_are_those_of_the_statistics(browser):
    with guard() as g:
        ask(g)
        page = g.serve()
        emulate(browser, 1200, 1500, "light")
        browser.get(page.url)
        until(lambda: shown(browser)["queries"][1] != "0")
        assert set(shown(browser)) == {
            "queries", "true_positives", "reads_saved", "false_positives", "memory", "passed",
            "change_checks", "adaptations", "adaptations_skipped", "rebuilds", "rebuild_seconds",
        }  # fmt: skip
        until(lambda: equals(browser, g.stats))
        assert g.stats.false_positives > 10
        # The page refreshes without a reload.
        ask(g)
        until(lambda: equals(browser, g.stats))
        assert float(shown(browser)["rebuild_seconds"][0]) == g.stats.rebuild_seconds
        assert browser.find_element("id", "trust").text == "filter trusted"
        g.driver.tasks["rebuild"].close()
        g.driver.distrust("of a test")
        until(lambda: browser.find_element("id", "trust").text == "all queries go to the store")
        # What other filters would have done, from a sample, in the background.
        rows = until(lambda: browser.find_elements("css selector", "#others tbody tr"))
        assert len(rows) > 3
        used = browser.execute_script("return document.querySelector('tr.use').textContent")
        assert used.startswith("Telescoping in use")
        rates = browser.execute_script(
            "return intervals(latest.series).length > 1 && "
            "document.querySelector('#rate .wasted-line').getAttribute('d').length"
        )
        assert rates > 10
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map((e) => e.name)"
        )
        assert set(loaded) == {page.url + "data"}
        assert browser.get_log("browser") == []
    until(lambda: browser.find_element("id", "trust").text == "not reachable")


@pytest.mark.parametrize("width", [320, 700, 1400])
def test_the_page_fits_light_and_dark_wide_and_narrow(browser, width):
    with guard(name="a-rather-long-name-of-a-table-in-some-schema") as g:
        page = g.serve()
        ask(g)
        browser.get(page.url)
        colors = set()
        for scheme in ("light", "dark"):
            emulate(browser, width, 900, scheme)
            until(lambda: browser.find_elements("css selector", "#others tbody tr"))
            colors.add(browser.execute_script("return getComputedStyle(document.body).color"))
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
            # Nothing is cut off within its card either.
            assert (
                browser.execute_script(
                    "return [...document.querySelectorAll('.card, .card *')].filter((e) => "
                    "getComputedStyle(e).overflowX === 'visible' && !e.closest('svg') && "
                    "e.scrollWidth > e.clientWidth + 1 && e.clientWidth).length"
                )
                == 0
            )
        assert len(colors) == 2


def test_the_page_needs_no_other_file():
    text = files("tamis.guard").joinpath("page.html").read_text(encoding="utf-8")
    assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
    assert re.findall(r"\b(?:src|href)=|@import|url\(", text) == []


# To whom.


def test_the_data_is_that_of_the_statistics():
    with guard() as g:
        ask(g)
        page = g.serve()
        text, headers = fetch(page.url)
        data = json.loads(text)
        s = g.stats
        for name in ("queries", "reads_saved", "false_positives", "memory", "trusted", "variance"):
            assert data["stats"][name] == getattr(s, name)
        assert data["stats"]["interval"] == list(s.interval)
        assert (data["name"], data["filter"], data["store"]) == ("users", "Telescoping", "Memory")
        assert headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert headers["Cache-Control"] == "no-store"
        assert status(page.url, "/other") == 404
        assert status(page.url, "/../page.html") == 404


def test_other_sites_cannot_read_it_under_a_name_of_theirs():
    with guard() as g:
        url = g.serve().url
        port = url.split(":")[2].strip("/")
        for host in ("127.0.0.1", f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}"):
            fetch(url, Host=host)
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "[::1", "",
                     "10.0.0.1", "localhost.evil.example", "127.0.0.1@evil.example"):  # fmt: skip
            assert status(url, Host=host) == 403
            assert status(url, "/", Host=host) == 403


TOKEN = "0123456789abcdef-_"


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "192.168.1.5", "example.org"])
def test_elsewhere_it_is_not_served_without_a_token(host):
    with guard() as g, pytest.raises(ValueError, match="host must be the loopback"):
        g.serve(host=host)


def test_a_token_is_asked_for():
    with guard() as g:
        page = g.serve(host="0.0.0.0", token=TOKEN)
        url = page.url.replace("0.0.0.0", "127.0.0.1")
        assert page.url.endswith(f"/?token={TOKEN}")
        assert TOKEN not in repr(page)
        fetch(url, f"/?token={TOKEN}")
        fetch(url, Authorization=f"Bearer {TOKEN}", Host="name.example")
        for path, headers in (
            ("/", {}),
            ("/data", {}),
            ("/data?token=", {}),
            (f"/data?token={TOKEN}x", {}),
            ("/data", {"Authorization": f"Bearer {TOKEN[:-1]}"}),
            ("/data", {"Authorization": f"Basic {TOKEN}"}),
            ("/other", {}),
        ):
            assert status(url, path, **headers) == 401
        page.close()
        g.serve(token=TOKEN)  # on the loopback it is asked for, too
        assert status(g._page.url) == 401


def test_a_page_with_a_token_refreshes_itself(browser):
    with guard() as g:
        ask(g)
        page = g.serve(host="0.0.0.0", token=TOKEN)
        browser.get(page.url.replace("0.0.0.0", "127.0.0.1"))
        until(lambda: equals(browser, g.stats))


def test_bad_arguments_are_named():
    with guard() as g:
        for arguments, says in (
            ({"port": -1}, "port must be from 0 to 65535, not -1"),
            ({"port": 1 << 16}, "not 65536"),
            ({"token": "short"}, "token must have at least 16 characters"),
            ({"token": "with a space, or so"}, "token must consist of letters"),
        ):
            with pytest.raises(ValueError, match=says):
                g.serve(**arguments)
        page = g.serve()
        with pytest.raises(ValueError, match="served already, at http"):
            g.serve()
        port = int(page.url.split(":")[-1].strip("/"))
        with guard() as other, pytest.raises(OSError, match=f"port {port} of 127.0.0.1"):
            other.serve(port)
    with pytest.raises(ValueError, match="that is closed"):
        g.serve()
    page.close()


def test_a_page_ends_with_its_guard_or_before():
    before = set(threading.enumerate())
    g = guard()
    page = g.serve()
    assert g.on_query is not None
    page.close()
    assert g.on_query is None
    with pytest.raises(urllib.error.URLError):
        fetch(page.url)
    page = g.serve()
    g.close()
    with pytest.raises(urllib.error.URLError):
        fetch(page.url)
    assert set(threading.enumerate()) <= before


def test_a_client_that_says_nothing_holds_nobody_up():
    with guard() as g:
        page = g.serve()
        silent = http.client.HTTPConnection(page.url.split("/")[2])
        silent.connect()
        fetch(page.url)
        page.close()
        silent.close()


# Attacks, by whoever can connect.


def connected(page):
    host, port = page.url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def answer(page, request):
    """All that the page says to a request of any bytes, until it hangs up."""
    with connected(page) as client:
        with suppress(OSError):  # it may hang up before it has read everything
            client.sendall(request)
        parts = []
        with suppress(ConnectionResetError):
            while part := client.recv(65536):
                parts.append(part)
        return b"".join(parts)


def test_connections_are_limited_before_a_token_is_checked(monkeypatch):
    monkeypatch.setattr(pages, "_MAX_CONNECTIONS", 4)
    with guard() as g:
        page = g.serve(token=TOKEN)
        before = threading.active_count()
        silent = [connected(page) for _ in range(4)]
        until(lambda: threading.active_count() == before + 4)
        for _ in range(20):
            assert answer(page, b"GET / HTTP/1.0\r\n\r\n") == b""
        assert threading.active_count() == before + 4
        for client in silent:
            client.close()
        until(lambda: threading.active_count() == before)
        fetch(page.url, f"/data?token={TOKEN}")


def test_a_client_that_sends_a_byte_now_and_then_is_hung_up_on(monkeypatch):
    monkeypatch.setattr(pages, "_MAX_SECONDS", 0.2)
    with guard() as g, connected(g.serve()) as client:
        client.settimeout(0.05)

        def hung_up():
            try:
                client.sendall(b"x")
                return client.recv(1) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        until(hung_up)


def test_no_more_of_a_request_is_read_than_it_may_have():
    with guard() as g:
        page = g.serve(token=TOKEN)
        headers = [b"X-%d: %s\r\n" % (i, b"x" * 1000) for i in range(80)]
        late = b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
        begin, end = b"GET /data HTTP/1.1\r\n", b"\r\n"
        assert b" 200 " in answer(page, begin + late + end)
        assert b" 200 " not in answer(page, b"".join([begin, *headers, late, end]))
        assert b" 200 " not in answer(page, b"GET /" + b"x" * 60_000 + late + end)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET //[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[::1/data HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\0\xff" * 100 + b"\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n: :\r\n\0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
        b"\r\n" * 1000,
        b"GET",
    ],
)
def test_malformed_requests_get_an_error_and_print_nothing(request_bytes, capfd):
    with guard() as g:
        page = g.serve()
        with connected(page) as client:
            client.sendall(request_bytes)
            client.shutdown(socket.SHUT_WR)
            said = client.recv(65536)
        assert b" 200 " not in said
        fetch(page.url)
    assert capfd.readouterr() == ("", "")


def test_workers_share_a_range_of_ports():
    with guard() as one, guard() as two, guard() as three:
        first = int(one.serve().url.split(":")[-1].strip("/"))
        second = two.serve(range(first, min(first + 50, 65536)))
        assert first < int(second.url.split(":")[-1].strip("/")) < first + 50
        assert json.loads(fetch(second.url)[0])["name"] == "users"
        with pytest.raises(OSError, match=f"cannot serve on port {first} .* pass a range of ports"):
            three.serve(first)
        with pytest.raises(OSError, match="cannot serve on port"):
            three.serve(range(first, first + 1))
        with pytest.raises(ValueError, match="port must be from 0 to 65535, not 65536"):
            three.serve(range(65000, 65537))


# What is kept for it.


def test_the_series_is_bounded(monkeypatch):
    monkeypatch.setattr(pages, "_MAX_POINTS", 10)
    series = pages.Series()
    with guard() as g:
        for i in range(1000):
            if i % 100 == 0:
                g.get(f"absent {i}")
            series.record(g.stats)
        points = series.read()
        assert 5 <= len(points) <= 11
        queries = [point.queries for point in points]
        assert queries == sorted(queries)
        assert queries[0] == 1
        assert queries[-1] >= 5


def test_the_sample_is_bounded_and_even(monkeypatch):
    monkeypatch.setattr(pages, "_MAX_QUERIES", 100)
    sample = pages.Sample()
    for i in range(10_000):
        sample.add([i])
    kept = sample.read()
    assert 50 <= len(kept) <= 100
    steps = {b - a for a, b in itertools.pairwise(kept)}
    assert steps == {128} or steps == {256}


def test_of_long_keys_a_digest_is_sampled():
    sample = pages.Sample()
    long = "x" * 10**6
    sample.add(
        ["short", long, long + "y", long, long.encode(), ("a", long), (1,) * 1000, "\ud800" * 99]
    )
    kept = sample.read()
    assert max(len(repr(key)) for key in kept) < 200
    assert kept[0] == "short"
    assert kept[1] == kept[3] != kept[2]
    assert kept[5] == ("a", kept[1])


def test_the_sample_has_absent_keys_only():
    with guard() as g:
        page = g.serve()
        for key in ("user1", "guest1", 5):
            g.get(key)
        assert "guest2" not in g
        g.get_many(["guest3", "user3"])
        assert page.sample.read() == ["guest1", 5, "guest2", "guest3"]


def test_a_comparison_needs_keys_and_queries():
    with guard(keys=0) as g:
        assert pages.compare_filters(g, [f"guest{i}" for i in range(1000)]) is None
    with guard() as g:
        assert pages.compare_filters(g, ["guest"] * 100) is None
        queries = [f"guest{i % 700}" for i in range(1000)] + list(range(200))
        found = pages.compare_filters(g, queries)
        assert found["queries"] == 1000
        assert all(0 <= choice["rate"] <= 1 for choice in found["choices"])


def test_the_command_serves_until_it_is_interrupted(tmp_path):
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE users (email TEXT PRIMARY KEY)")
        db.executemany("INSERT INTO users VALUES (?)", [(f"u{i}",) for i in range(100)])
    db.close()
    (tmp_path / "log.txt").write_text("".join(f"v{i}\n" for i in range(500)))
    command = [sys.executable, "-m", "tamis", "guard", "shop.db", "--table", "users", "--key"]
    command += ["email", "--queries", "log.txt", "--serve", "0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=os.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+/", process.stderr.readline()).group()
        until(lambda: json.loads(fetch(url)[0])["stats"]["queries"] == 500)
        assert json.loads(fetch(url)[0])["name"] == "users"
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "reads saved" in out
