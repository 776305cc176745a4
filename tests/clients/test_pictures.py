"""Pictures in the spellings that clients send: each reaches every provider in the one it reads."""

import base64

import pytest

from batuta.clients.data_url import picture_data_url, plain_picture_url, split_data_url
from batuta.errors import BadRequestError

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\xfb\xff" * 40 + b"\x00").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0" + b"\x00" * 60).decode()
WEBP = base64.b64encode(b"RIFF\x00\x00\x00\x00WEBPVP8 ").decode()
URL_SAFE = PNG.translate(str.maketrans("+/", "-_"))
QUOTED = PNG.replace("+", "%2B").replace("/", "%2F").replace("=", "%3D")


@pytest.mark.parametrize(
    ("given", "kind", "data"),
    [
        (f"data:image/png;base64,{PNG}", "image/png", PNG),
        (f"data:image/jpg;base64,{JPEG}", "image/jpeg", JPEG),
        (f"DATA:IMAGE/JPG;BASE64,{JPEG}", "image/jpeg", JPEG),
        (f"data:image/png;base64,{JPEG}", "image/jpeg", JPEG),
        (f"data:image/png;charset=utf-8;base64,{PNG}", "image/png", PNG),
        (f"data:image/png;name=a.png;base64,{PNG}", "image/png", PNG),
        (f"data:;base64,{WEBP}", "image/webp", WEBP),
        (f"data:application/octet-stream;base64,{PNG}", "image/png", PNG),
        (f"data:image/*;base64,{PNG}", "image/png", PNG),
        (f" data:image/png;base64,{PNG[:40]}\n{PNG[40:]}\r\n", "image/png", PNG),
        (f"data:image/png;base64,{PNG.rstrip('=')}", "image/png", PNG),
        (f"data:image/png;base64,{URL_SAFE}", "image/png", PNG),
        (f"data:image/png;base64,{QUOTED}", "image/png", PNG),
        (PNG, "image/png", PNG),
    ],
)
def test_every_spelling(given, kind, data):
    assert split_data_url(given) == (kind, data)


def test_types_that_bytes_do_not_tell_stay_as_they_are_named():
    assert plain_picture_url("data:image/heic;base64,AAAA") == "data:image/heic;base64,AAAA"
    assert picture_data_url("image/jpg", "AAAA") == "data:image/jpeg;base64,AAAA"
    assert picture_data_url("image/jpeg", f"data:image/png;base64,{PNG}").startswith(
        "data:image/png"
    )


def test_addresses():
    assert plain_picture_url("HTTPS://a.org/B.png ") == "https://a.org/B.png"
    assert split_data_url("https://a.org/b.png") is None


@pytest.mark.parametrize(
    "wrong",
    ["", "data:", "data:image/png,abc", "data:text/plain;base64,AAAA", "data:image/png;base64,",
     "data:image/png;base64,A", "ftp://a.org/b.png", "data:image/png;base64,é", "folder/a.png"],
)  # fmt: skip
def test_what_is_no_picture(wrong):
    with pytest.raises(BadRequestError):
        plain_picture_url(wrong)
