"""What a certificate says of itself, without a library for it."""

import datetime as dt
import ssl

__all__ = ["not_after"]

_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def not_after(pem: str) -> float | None:
    """When the first certificate of a PEM text ends, in seconds since 1970; None if it is none.

    The place of the time in the certificate: https://www.rfc-editor.org/rfc/rfc5280#section-4.1
    """
    start = pem.find(_BEGIN)
    end = pem.find(_END, start)
    if start < 0 or end < 0:
        return None
    try:
        der = ssl.PEM_cert_to_DER_cert(pem[start : end + len(_END)])
        return _validity_end(der)
    except (ValueError, IndexError):
        return None


def _validity_end(der: bytes) -> float | None:
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # TBSCertificate
    tag, _, end = _element(der, at)
    fields_before = 3  # serialNumber, signature, issuer
    if tag == _VERSION:
        at = end
    for _ in range(fields_before):
        _, _, at = _element(der, at)
    tag, at, _ = _element(der, at)  # validity
    if tag != _SEQUENCE:
        return None
    _, _, at = _element(der, at)  # notBefore
    tag, at, end = _element(der, at)
    text = der[at:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of a year: 50 to 99 are of 1900
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    elif tag != _GENERALIZED_TIME:
        return None
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, where the contents begin, and where they end."""
    tag, size, at = der[at], der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, at = int.from_bytes(der[at : at + count], "big"), at + count
    if at + size > len(der):
        raise ValueError("the certificate is cut off")
    return tag, at, at + size
