"""Small documents of the kinds that are read, and some that are not what they say."""

import io
import zipfile
import zlib
from functools import cache, reduce

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"


def zipped(**parts: str | bytes) -> bytes:
    """A ZIP of these parts; `__` in a name stands for a slash."""
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", zipfile.ZIP_DEFLATED) as parts_file:
        for name, content in parts.items():
            folder, _, rest = name.rpartition("__")
            path = f"{folder.replace('__', '/')}/{rest}" if folder else rest
            parts_file.writestr(f"{path}.xml", content)
    return kept.getvalue()


def docx(*paragraphs: str) -> bytes:
    told = "".join(f"<w:p><w:r><w:t>{each}</w:t></w:r></w:p>" for each in paragraphs)
    return zipped(
        word__document=f'<w:document xmlns:w="{WORD}"><w:body>{told}</w:body></w:document>'
    )


def xlsx(*rows: tuple[str, int]) -> bytes:
    shared = "".join(f"<si><t>{name}</t></si>" for name, _ in rows)
    told = "".join(
        f'<row><c t="s"><v>{at}</v></c><c><v>{number}</v></c></row>'
        for at, (_, number) in enumerate(rows)
    )
    sheet = f'<worksheet xmlns="{SHEET}"><sheetData>{told}</sheetData></worksheet>'
    return zipped(
        xl__sharedStrings=f'<sst xmlns="{SHEET}">{shared}</sst>', xl__worksheets__sheet1=sheet
    )


@cache
def docx_bomb() -> bytes:
    """A few hundred kilobytes that unpack to more than is read."""
    return docx("x" * (70 << 20))


def entity_bomb() -> bytes:
    """A Word file whose XML names entities that name entities."""
    names = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 10}">' for n in range(10))
    body = f'<w:document xmlns:w="{WORD}"><w:p><w:r><w:t>&e9;</w:t></w:r></w:p></w:document>'
    return zipped(word__document=f"<!DOCTYPE w [{names}]>{body}")


def foreign_entity() -> bytes:
    """A Word file whose XML names a file of the machine and an address."""
    names = '<!ENTITY x SYSTEM "file:///etc/passwd"><!ENTITY % y SYSTEM "http://127.0.0.1:9/y"> %y;'
    body = f'<w:document xmlns:w="{WORD}"><w:p><w:r><w:t>&x;</w:t></w:r></w:p></w:document>'
    return zipped(word__document=f"<!DOCTYPE w [{names}]>{body}")


def many_parts() -> bytes:
    """A Word file of three thousand parts."""
    return zipped(**{f"part{n}": "" for n in range(3000)})


def shared_bomb() -> bytes:
    """An Excel file of one long text that three thousand cells of one row name."""
    row = '<c t="s"><v>0</v></c>' * 3000
    return zipped(
        xl__sharedStrings=f'<sst xmlns="{SHEET}"><si><t>{"x" * 1_000_000}</t></si></sst>',
        xl__worksheets__sheet1=f'<worksheet xmlns="{SHEET}"><sheetData><row>{row}</row></sheetData></worksheet>',
    )


@cache
def lying_zip() -> bytes:
    """A Word file whose part unpacks to more than its entry says."""
    whole = bytearray(docx("y" * 5_000_000))
    size = len(
        f'<w:document xmlns:w="{WORD}"><w:body><w:p><w:r><w:t>{"y" * 5_000_000}</w:t></w:r></w:p></w:body></w:document>'
    )
    told = size.to_bytes(4, "little")
    return bytes(whole).replace(told, (1000).to_bytes(4, "little"))


def pdf(text: str) -> bytes:
    """A PDF of one page with that text."""
    return _pdf_of(f"BT /F1 24 Tf 72 700 Td ({text}) Tj ET".encode())


@cache
def pdf_bomb() -> bytes:
    """Half a megabyte whose page unpacks to 500."""
    million, packer = b" " * 1_000_000, zlib.compressobj(9)
    # Behind a full flush the same million gives the same bytes: to pack all of them takes seconds.
    first, again = (packer.compress(million) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    checksum = reduce(lambda value, _: zlib.adler32(million, value), range(500), 1)
    packed = first + again * 499 + packer.flush()[:-4] + checksum.to_bytes(4, "big")
    return _pdf_of(packed, b"/Filter /FlateDecode ")


def _pdf_of(stream: bytes, packing: bytes = b"") -> bytes:
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
    page += b"/Resources << /Font << /F1 5 0 R >> >> >>"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        page,
        b"<< %s/Length %d >>\nstream\n%s\nendstream" % (packing, len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out, places = io.BytesIO(), []
    out.write(b"%PDF-1.4\n")
    for number, body in enumerate(objects, 1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    at = out.tell()
    out.write(b"xref\n0 6\n0000000000 65535 f \n")
    out.write(b"".join(b"%010d 00000 n \n" % place for place in places))
    out.write(b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % at)
    return out.getvalue()
