"""Labels of browsers."""

from tenantry.dashboard.labels import browser_label
from tests.support.cases import cases

WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"


@cases(
    ("agent", "words"),
    [
        (
            f"Mozilla/5.0 (Windows NT 10.0; Win64; x64) {WEBKIT} Chrome/140.0 Safari/537.36 Edg/140.0",
            "Edge on Windows",
        ),
        (
            f"Mozilla/5.0 (X11; CrOS x86_64 14541) {WEBKIT} Chrome/140.0 Safari/537.36",
            "Chrome on ChromeOS",
        ),
        (
            f"Mozilla/5.0 (Linux; Android 15) {WEBKIT} Chrome/140.0 Mobile Safari/537.36",
            "Chrome on Android",
        ),
        (
            "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0",
            "Firefox on Linux",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 Version/18.5 Safari/604.1",
            "Safari on an iPhone",
        ),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)", "A browser on a Mac"),
        ("curl/8.14.1", "An unknown browser"),
        ("", "An unknown browser"),
        (None, "An unknown browser"),
    ],
)
def test_browser_is_named_despite_inherited_names(agent: str | None, words: str) -> None:
    assert browser_label(agent) == words
