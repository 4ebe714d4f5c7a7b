"""Names in mails hold nothing that a mail program turns into a link."""

import re
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from tenantry.domain.names import LONGEST, display_text
from tests.support.cases import cases

LINKS = re.compile(
    r"""(?ix) [a-z][a-z0-9+.-]*:\S      # a scheme
      | \w[.\u3002\uff0e\uff61]\w     # a domain, an address of the Internet
      | \w@ | @\w                     # an e-mail address
      | //  | \\\\                    # a path of a network
      | \d(?:[\s().+/-]{0,3}\d){6}     # a phone number
    """
)


@cases(
    ("name", "shown"),
    [
        ("Acme Inc.", "Acme Inc."),
        ("Jörg & Söhne (1998)", "Jörg & Söhne (1998)"),
        ("日本商事", "日本商事"),
        ("שלום", "שלום"),
        ("Team: Blue, no. 7", "Team: Blue, no. 7"),
        ("Booking.example", "Booking[.]example"),
        ("https://evil.example/a", "https[:]/evil[.]example/a"),
        ("mailto:me@evil.example", "mailto[:]me[at]evil[.]example"),
        ("evil\u3002example", "evil[.]example"),
        ("evil\uff0eexample", "evil[.]example"),
        ("evil.\u200bexample", "evil[.]example"),
        ("evil\u00ad.example", "evil[.]example"),
        ("evil\u202emoc.example", "evilmoc[.]example"),
        ("me\uff20evil", "me[at]evil"),
        ("\\\\server\\share", "/server\\share"),
        ("call +1 (800) 555-0199 now", "call +[number] now"),
        ("١٢٣٤٥٦٧", "[number]"),
        ("a\r\nb\tc\u2028d", "a b c d"),
        ("\u3164\u2800\u200b", "(no name)"),
        ("", "(no name)"),
    ],
)
def test_names(name: str, shown: str) -> None:
    assert display_text(name) == shown


@given(
    st.text(max_size=300)
    | st.text(alphabet="ev.:/@\\1 0-()\u200b\u202e\uff0e\u3002\u00ad+", max_size=300)
)
def test_no_text_becomes_a_link(name: str) -> None:
    shown = display_text(name)
    assert LINKS.search(shown) is None, shown
    assert 0 < len(shown) <= LONGEST
    assert not [
        letter for letter in shown if unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    ]
