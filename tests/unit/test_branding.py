"""The product that customers see: its color, its logo and its name."""

import re
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

from tenantry.domain import branding
from tenantry.domain.branding import (
    CONTRAST,
    DARK_BACKGROUND,
    LIGHT_BACKGROUND,
    Branding,
    accent_of,
    check_logo,
    contrast,
)
from tenantry.notifications.mail_composition import compose
from tests.support.cases import cases
from tests.support.pictures import png
from tests.unit.test_mail_composition import MAIL, SENDER
from tests.unit.test_settings import faults_of, loaded

COLORS: Final = ["#000000", "#ffffff", "#ffcc00", "#7f7f7f", "#0b5d55", "#ff0000", "#0000FF"]


@cases("color", COLORS)
def test_text_in_the_color_and_on_it_can_be_read(color: str) -> None:
    accent = accent_of(color)
    assert contrast(accent.light, LIGHT_BACKGROUND) >= CONTRAST
    assert contrast(accent.on_light, accent.light) >= CONTRAST
    assert contrast(accent.dark, DARK_BACKGROUND) >= CONTRAST
    assert contrast(accent.on_dark, accent.dark) >= CONTRAST


def test_contrast_is_that_of_the_guidelines() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def test_color_with_enough_contrast_is_used_as_it_is() -> None:
    assert accent_of("#0b5d55").light == "#0b5d55"
    assert accent_of("#74cdbf").dark == "#74cdbf"


def test_color_that_is_changed_is_said() -> None:
    product = Branding("Nimbus", "#ffcc00", accent_of("#ffcc00"))
    assert product.accent is not None
    assert product.adapted == (
        f"#ffcc00 has too little contrast as text on some pages: light pages use {product.accent.light}, "
        "dark pages #ffcc00"
    )
    assert not Branding().adapted


def test_backgrounds_are_those_of_the_pages() -> None:
    style = resources.files("tenantry.dashboard").joinpath("assets/base.css").read_text("utf-8")
    found = re.findall(r"--grey-wash: light-dark\((#\w+), (#\w+)\)", style)
    assert found == [(LIGHT_BACKGROUND, DARK_BACKGROUND)]


def test_settings_make_the_product(tmp_path: Path) -> None:
    logo = tmp_path / "logo.png"
    logo.write_bytes(png(96, 96))
    values = {"PRODUCT_NAME": "Nimbus", "PRODUCT_COLOR": "#123456", "PRODUCT_LOGO": str(logo)}
    product = loaded(**values).branding
    assert (product.name, product.color, product.logo) == ("Nimbus", "#123456", png(96, 96))
    assert loaded().branding == Branding()


def test_faulty_name_and_color_are_refused() -> None:
    assert sorted(faults_of(PRODUCT_NAME="x" * 41, PRODUCT_COLOR="blue")) == [
        "PRODUCT_COLOR: must be a color, # and six hexadecimal digits, such as #0b5d55",
        "PRODUCT_NAME: must be at most 40 visible characters",
    ]
    for name in ("a\nb", "a\u202eb", "\u200b"):
        assert faults_of(PRODUCT_NAME=name) == [
            "PRODUCT_NAME: must be at most 40 visible characters"
        ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"<svg xmlns='http://www.w3.org/2000/svg'><script/></svg>", "is not a PNG"),
        (b"", "is not a PNG"),
        (png(96, 96)[:20], "is not a PNG"),
        (png(15, 96), "has 15 x 96 pixels"),
        (png(96, 1025), "has 96 x 1025 pixels"),
        (png(96, 96) + b"\0" * branding.MOST_LOGO_BYTES, "has more than 32 KiB"),
    ],
)
def test_faulty_logo_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        check_logo(content)
    logo = tmp_path / "logo.png"
    logo.write_bytes(content)
    [message] = faults_of(PRODUCT_LOGO=str(logo))
    assert message.startswith(f"PRODUCT_LOGO: {logo} {fault}")


def test_missing_logo_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "none.png"
    assert faults_of(PRODUCT_LOGO=str(missing)) == [
        f"PRODUCT_LOGO: {missing} cannot be read: No such file or directory"
    ]


SAMPLES: Final = """
Samples of the first request.

```curl
curl -H "Authorization: Bearer {key}" {base}/v1/reports -d '{"from": {}}'
```

~~~~ Python
~~~
import nimbus
~~~~
"""


def sample_file(folder: Path, text: str) -> str:
    file = folder / "samples.md"
    file.write_text(text)
    return str(file)


def test_samples_are_the_blocks_of_code(tmp_path: Path) -> None:
    product = loaded(PRODUCT_SAMPLE=sample_file(tmp_path, SAMPLES)).branding
    curl, python = product.samples
    assert (curl.language, python.language) == ("curl", "Python")
    assert curl.filled("$NIMBUS_KEY", "https://api.example") == (
        'curl -H "Authorization: Bearer $NIMBUS_KEY" https://api.example/v1/reports -d \'{"from": {}}\''
    )
    assert python.code == "~~~\nimport nimbus"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "has no code block"),
        ("curl {base}", "has no code block"),
        ("```curl\ncurl", "has a code block without an end: close it with ```"),
        ("```\ncurl\n```", "has a code block whose language is not 1 to 30 printable"),
        (f"```{'x' * 31}\ncurl\n```", "has a code block whose language is not 1 to 30"),
        ("```cu\u202erl\ncurl\n```", "has a code block whose language is not 1 to 30"),
        ("```curl\n \n```", "has an empty code block of curl"),
        ("```curl\ncu\u202erl\n```", "has characters in curl that people can't see"),
        ("```curl\ncu\x1brl\n```", "has characters in curl that people can't see"),
        ("```sh\na\n```\n```sh\nb\n```", "has two code blocks of sh"),
        ("".join(f"```{n}\na\n```\n" for n in range(9)), "has more than 8 code blocks"),
        ("a" * 16385, "has more than 16 KiB"),
    ],
)
def test_faulty_samples_are_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = sample_file(tmp_path, text)
    [message] = faults_of(PRODUCT_SAMPLE=path)
    assert message.startswith(f"PRODUCT_SAMPLE: {path} {fault}")


def test_samples_that_are_no_text_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "samples.md"
    file.write_bytes(b"\xff")
    assert faults_of(PRODUCT_SAMPLE=str(file)) == [f"PRODUCT_SAMPLE: {file} is not UTF-8 text"]
    assert faults_of(PRODUCT_SAMPLE=str(tmp_path)) == [
        f"PRODUCT_SAMPLE: {tmp_path} cannot be read: Is a directory"
    ]


@pytest.mark.parametrize(
    ("given", "link"),
    [
        ("help@nimbus.example", "mailto:help@nimbus.example"),
        ("mailto:help@nimbus.example", "mailto:help@nimbus.example"),
        ("https://nimbus.example/help?from=pages", "https://nimbus.example/help?from=pages"),
    ],
)
def test_support_is_an_address_or_a_page(given: str, link: str) -> None:
    assert loaded(PRODUCT_SUPPORT=given).branding.support == link


NO_LINKS: Final = (
    "javascript:alert(1)",
    "data:text/html,x",
    "//nimbus.example",
    "nimbus.example",
    "https://",
    "https://nimbus.example/a b",
    "https://nimbus.example/\u202e",
    "https://user:password@nimbus.example/",
)


@cases("text", [*NO_LINKS, "help@nimbus.example?bcc=x@y.example", "help@", "@nimbus.example"])
def test_faulty_support_is_refused(text: str) -> None:
    assert faults_of(PRODUCT_SUPPORT=text) == [
        "PRODUCT_SUPPORT: must be a mail address, or an http or https address"
    ]


@cases("text", [*NO_LINKS, "mailto:help@nimbus.example"])
def test_faulty_documentation_is_refused(text: str) -> None:
    [message] = faults_of(PRODUCT_DOCS_URL=text)
    assert message.startswith("PRODUCT_DOCS_URL: must ")


@cases("text", ["1KEY", "NIMBUS-KEY", "$KEY", "A B", "K" * 65, "SCHLÜSSEL"])
def test_faulty_variable_is_refused(text: str) -> None:
    assert faults_of(PRODUCT_KEY_VARIABLE=text) == [
        "PRODUCT_KEY_VARIABLE: must be the name of a variable, such as NIMBUS_API_KEY"
    ]
    assert loaded(PRODUCT_KEY_VARIABLE="NIMBUS_KEY").branding.key_variable == "NIMBUS_KEY"


def test_mail_names_the_product() -> None:
    mail = compose(MAIL, SENDER, product=Branding("Nimbus & Söhne"))
    plain, html = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert mail["Subject"] == "[Nimbus & Söhne] Payment failed"
    assert plain is not None
    assert "sent automatically by Nimbus & Söhne." in plain.get_content()
    assert html is not None
    assert "sent automatically by Nimbus &amp; Söhne." in html.get_content()
    assert compose(MAIL, SENDER)["Subject"] == "Payment failed"


def test_mail_ends_with_support_and_documentation() -> None:
    docs = 'https://docs.example/?a=1&b="><script>'
    product = Branding("Nimbus", docs_url=docs, support="mailto:help@nimbus.example")
    mail = compose(MAIL, SENDER, product=product)
    plain, html = (mail.get_body((kind,)) for kind in ("plain", "html"))
    assert plain is not None
    assert plain.get_content().endswith(
        f" by Nimbus.\n\nSupport: help@nimbus.example\nDocumentation: {docs}\n"
    )
    assert html is not None
    assert 'href="mailto:help@nimbus.example"' in html.get_content()
    assert "<script>" not in html.get_content()


def test_no_mail_names_tenantry() -> None:
    mail = compose(MAIL, SENDER, product=Branding("Nimbus"))
    assert "tenantry" not in mail.as_string().lower()
    templates = list(resources.files("tenantry.notifications").joinpath("templates").iterdir())
    assert len(templates) > 20
    texts = {template.name: template.read_text("utf-8").lower() for template in templates}
    assert [name for name, text in texts.items() if "tenantry" in text] == []
