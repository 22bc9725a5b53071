"""Hostile input to the live server: harmful files, invalid numbers, deeply nested JSON."""

import io
import json
import struct
import zlib

import pytest
from explorer_live_cases import RED, data_url, packed, post, run, serving, upload
from PIL import Image

from eligo.explorer.uploads import MAX_PIXELS, MAX_SIDE, open_depth, open_picture


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


def noisy(width: int = 64, height: int = 48) -> Image.Image:
    return Image.effect_noise((width, height), 60).convert("RGB")


def png(width: int, height: int, colour: int = 0, body: bytes = b"") -> bytes:
    """A PNG whose header claims the given size, with any body."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    data = chunk(b"IDAT", body or zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + data + chunk(b"IEND", b"")


# ------------------------------------------------------------------ pictures


@pytest.mark.parametrize(("kind", "name"), [("PNG", "png"), ("JPEG", "jpeg"), ("WEBP", "webp")])
def test_accepted_formats(server, kind, name):
    reply = upload(server, packed(noisy(), kind), name)
    assert reply.answers["image"] == "RGB 64 48"
    # The content decides, not the declared type.
    assert upload(server, packed(noisy(), kind), "png").status == 200


def test_every_mode_becomes_rgb(server):
    for mode in ("RGBA", "L", "LA", "P", "1", "I;16"):
        assert upload(server, packed(noisy().convert("L").convert(mode))).answers["image"] == (
            "RGB 64 48"
        ), mode
    cmyk = packed(noisy().convert("CMYK"), "JPEG")
    assert upload(server, cmyk, "jpeg").answers["image"] == "RGB 64 48"


def test_exif_orientation_is_applied(server):
    picture = Image.new("RGB", (60, 40))
    picture.paste((255, 255, 255), (0, 0, 30, 40))  # white on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated camera: the left side belongs on top
    turned = open_picture(packed(picture, "JPEG", exif=exif, quality=95))
    assert turned.size == (40, 60)
    assert min(turned.getpixel((20, 5))) > 200
    assert max(turned.getpixel((20, 55))) < 50


def test_large_images_are_scaled_down(server):
    reply = upload(server, packed(noisy(3000, 1500), "JPEG", quality=30), "jpeg")
    assert reply.answers["image"] == f"RGB {MAX_SIDE} {MAX_SIDE // 2}"


def test_equal_bytes_have_equal_keys(server):
    one, other = packed(noisy()), packed(noisy())
    keys = [upload(server, data).answers["key"] for data in (one, other, one)]
    assert keys[0] == keys[2] != keys[1]
    assert run(server).answers["key"] == "example red"


def test_decompression_bombs_are_refused_unopened(server):
    for width, height in ((20000, 20000), (6000, 4001), (2**31 - 1, 2**31 - 1), (60000, 3000)):
        reply = upload(server, png(width, height))
        assert reply.status == 413, (width, height)
        assert "scale it down" in reply.error
    whole = zlib.compress(b"\0" * 5001 * 6000)  # 30 million pixels in 30 kB
    assert upload(server, png(5000, 6000, body=whole)).status == 413
    assert MAX_PIXELS == 6000 * 4000


def test_extreme_aspect_ratios_are_refused(server):
    # A processor that brings the shorter side to 336 pixels would make 10 million columns of it.
    for size in ((3000, 100), (100, 3000), (15, 15), (1, 1)):
        reply = upload(server, packed(Image.new("RGB", size)))
        assert reply.status == 400
        assert "crop it" in reply.error


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_files_are_refused(server, kind):
    whole = packed(noisy(200, 200), kind)
    for share in (0.3, 0.6, 0.9):
        reply = upload(server, whole[: int(len(whole) * share)], kind.lower())
        assert reply.status == 400, (kind, share)
        assert "cannot be read" in reply.error
    assert upload(server, whole[:5], kind.lower()).status == 415
    assert upload(server, b"").status == 415


def test_damaged_files_never_break_the_server(server):
    for kind in ("PNG", "JPEG", "WEBP"):
        whole = bytearray(packed(noisy(200, 200), kind))
        for place in range(0, len(whole), max(1, len(whole) // 40)):
            damaged = bytearray(whole)
            damaged[place] ^= 0xFF
            assert upload(server, bytes(damaged), kind.lower()).status in (200, 400, 413, 415)
    assert run(server).status == 200


def test_other_file_types_are_refused(server):
    others = [packed(RED, kind) for kind in ("GIF", "BMP", "TIFF", "PPM", "ICO")]
    others += [b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"%PDF-1.7", b"\0" * 100, b"PK\3\4"]
    for data in others:
        reply = upload(server, data)
        assert reply.status == 415
        assert "PNG or JPEG or WEBP" in reply.error
    for kind in ("gif", "svg", "tiff"):
        assert run(server, image={"data": data_url(packed(RED), kind)}).status == 415


def test_text_bomb_in_a_png_is_refused(server):
    from PIL.PngImagePlugin import PngInfo

    text = PngInfo()
    text.add_text("Comment", "a" * 80_000_000, zip=True)
    bomb = packed(RED, pnginfo=text)
    assert len(bomb) < 200_000
    assert upload(server, bomb).status == 400


def test_depth_keeps_its_values():
    ramp = Image.new("I;16", (64, 48))
    ramp.putdata(list(range(64 * 48)))
    opened = open_depth(packed(ramp), (64, 48))
    assert opened.getpixel((63, 47)) == 64 * 48 - 1
    assert open_depth(packed(ramp), (32, 24)).size == (32, 24)
    assert open_depth(packed(ramp.convert("L")), (64, 48)).mode == "L"


def test_invalid_depth_is_refused(server):
    def status(data: bytes, **fields: object) -> int:
        return run(server, tool="deep", depth={"data": data_url(data)}, **fields).status

    assert status(packed(Image.new("I;16", (32, 24)))) == 200
    assert status(packed(RED)) == 415  # three channels
    assert status(packed(Image.new("L", (32, 24)), "JPEG")) == 415  # lossy
    assert status(packed(Image.new("L", (24, 32)))) == 400  # another shape
    assert run(server, depth={"data": data_url(packed(Image.new("L", (32, 24))))}).status == 400


# ------------------------------------------------------------------ text and numbers


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool": ...}, "tool: got null"),
        ({"tool": "ekho"}, "echo"),
        ({"tool": ["echo"]}, "tool: got a list of 1"),
        ({"tool": {}}, "tool: got an object of 0"),
        ({"tool": "x" * 10000}, "..."),
        ({"budge": 3}, "did you mean"),
        ({"text": 5}, "text: got 5"),
        ({"text": None}, "text: got null"),
        ({"text": ["a"]}, "text: got a list of 1"),
        ({"text": "a" * 1001}, "at most 1000"),
        ({"text": "\ud800"}, "surrogate"),
        ({"budget": "3"}, 'budget: got "3", expected a number'),
        ({"budget": True}, "expected a number"),
        ({"budget": [3]}, "expected a number"),
        ({"budget": 0}, "expected 1 to 5"),
        ({"budget": 6}, "expected 1 to 5"),
        ({"budget": -1e308}, "expected 1 to 5"),
        ({"budget": 10**400}, "expected 1 to 5"),
        ({"budget": 2}, "steps of 2 from 1"),
        ({"budget": 2.5}, "steps of 2 from 1"),
        ({"tool": "deep", "budget": 3}, "this tool has none"),
        ({"choices": "red"}, 'choices: got "red", expected an object'),
        ({"choices": {"colour": "red"}}, 'got the key "colour", expected one of: none'),
        (
            {"tool": "deep", "budget": ..., "choices": {"colour": "green"}},
            "expected one of red, blue",
        ),
        ({"tool": "deep", "budget": ..., "choices": {"colour": ["red"]}}, "got a list of 1"),
        ({"tool": "blind"}, "takes none"),
        ({"image": ...}, "image: got null"),
        ({"image": "red"}, "image: got"),
        ({"image": {}}, "an object of 0"),
        ({"image": {"example": "red", "data": "x"}}, "an object of 2"),
        ({"image": {"path": "/etc/passwd"}}, 'image: got the key "path"'),
        ({"image": {"example": "blue"}}, "expected one of: red, deep"),
        ({"image": {"example": None}}, "expected one of: red, deep"),
        ({"image": {"example": ["red"]}}, "expected one of: red, deep"),
        ({"image": {"data": 5}}, "image.data: got 5"),
        ({"image": {"data": ""}}, "expected data:image/png;base64"),
        ({"image": {"data": "http://127.0.0.1/x.png"}}, "expected data:image/png;base64"),
        ({"image": {"data": "file:///etc/passwd"}}, "expected data:image/png;base64"),
        ({"image": {"data": "data:image/png,abc"}}, "expected data:image/png;base64"),
        ({"image": {"data": "data:image/png;base64,***"}}, "not base64"),
        ({"image": {"data": "data:image/png;base64,abc"}}, "not base64"),
        ({"image": {"data": "data:image/png;base64,ä"}}, "not base64"),
        ({"depth": {"data": "x"}}, "takes none"),
        ({"tool": "deep", "depth": "x"}, "depth: got"),
        ({"tool": "deep", "depth": {"example": "deep"}}, "depth: got an object of 1"),
    ],
)
def test_invalid_fields_are_refused(server, fields, message):
    reply = run(server, **fields)
    assert reply.status == 400
    assert message in reply.error
    assert len(reply.error) < 300


@pytest.mark.parametrize(
    "body",
    [
        b"", b"null", b"[]", b"3", b'"echo"', b"{", b'{"tool": "echo",}', b"\xff\xfe", b"{'a': 1}",
        b'{"tool": "echo", "budget": NaN}', b'{"tool": "echo", "budget": Infinity}',
        b'{"tool": "echo", "budget": ' + b"9" * 5000 + b"}",
        b"[" * 100_000, b'{"tool":' * 50_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b"[" * 2_000_000 + b"]" * 2_000_000,
    ],
)  # fmt: skip
def test_invalid_bodies_are_refused(server, body):
    reply = post(server, body)
    assert reply.status == 400
    assert reply.error.startswith(("body: ", "tool: "))
    assert len(reply.error) < 300


def test_budget_accepts_any_json_number(server):
    assert run(server, budget=3.0).status == 200
    assert post(server, b'{"tool":"echo","image":{"example":"red"},"budget":1e0}').status == 200
    assert post(server, b'{"tool":"echo","image":{"example":"red"},"budget":1e999}').status == 400


def test_any_text_is_accepted_and_echoed(server):
    for text in (
        "",
        "  ",
        "<script>alert(1)</script>",
        "日本語 🙂",
        "a\0b",
        "' OR 1=1 --",
        "a" * 1000,
    ):
        reply = run(server, text=text)
        assert reply.answers["text"] == " ".join(text.split())
        assert json.loads(reply.body)["record"]["query"] == " ".join(text.split())


def test_uploads_write_no_files(server, monkeypatch):
    opened = []
    real = io.open

    def watched(file, mode="r", *args, **kwargs):
        opened.append((file, mode))
        return real(file, mode, *args, **kwargs)

    monkeypatch.setattr("builtins.open", watched)
    monkeypatch.setattr("io.open", watched)
    assert upload(server, packed(noisy(1500, 900), "JPEG"), "jpeg").status == 200
    assert [file for file, mode in opened if set(mode) & set("wax+")] == []
