"""The library, loaded; its errors as exceptions."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Mapping, Optional, Union

import cffi

PathLike = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Option = Union[bool, int, str, bytes, "os.PathLike[str]"]

ffi: Any = cffi.FFI()


def _declarations() -> str:
    """What cffi reads of the header: no conditions, no C++, and the numbers that are plain."""
    text = (Path(__file__).parent / "cowhand.h").read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif[^\n]*", "", text, flags=re.DOTALL)
    kept = []
    for line in text.splitlines():
        if not line.startswith("#") or re.match(r"#define \w+ \d+$", line):
            kept.append(line)
    return "struct iovec { void *iov_base; size_t iov_len; };\n" + "\n".join(kept)


ffi.cdef(_declarations())
lib: Any = ffi.dlopen(os.environ.get("COWHAND_LIBRARY", "libcowhand.so.0"))


class Error(OSError):
    """A call or a request failed: `errno` is the system's number, `strerror` the library's words."""


def version() -> str:
    """The version of the library."""
    return _text(lib.cowhand_version())


def check(result: int) -> int:
    """Gives the result of a call, or raises what it says."""
    if result < 0:
        raise Error(-result, _text(lib.cowhand_error_message()))
    return result


def _text(place: Any) -> str:
    """A text of the library's."""
    return bytes(ffi.string(place)).decode("utf-8", "replace")


def text_of(function: Any, *arguments: Any) -> str:
    """The text that a function gives at its last argument."""
    text = ffi.new("char **")
    check(function(*arguments, text))
    try:
        return _text(text[0])
    finally:
        lib.cowhand_free(text[0])


def parsed(function: Any, *arguments: Any) -> Any:
    """The JSON that a function returns."""
    return json.loads(text_of(function, *arguments))


def number(disk: Any, name: str) -> int:
    """A property that is a number."""
    value = ffi.new("uint64_t *")
    check(lib.cowhand_get_u64(disk, name.encode(), value))
    return int(value[0])


def flag(disk: Any, name: str) -> bool:
    """A property that is yes or no."""
    value = ffi.new("bool *")
    check(lib.cowhand_get_bool(disk, name.encode(), value))
    return bool(value[0])


def prepare(path: Optional[PathLike], driver: str, options: Mapping[str, Option], named: Mapping[str, Option]) -> Any:
    """Makes a disk and sets its properties; gives its handle, which the caller destroys."""
    place = ffi.new("cowhand_disk **")
    check(lib.cowhand_create(driver.encode(), place))
    try:
        if path is not None:
            check(lib.cowhand_set_str(place[0], b"path", os.fsencode(path)))
        for name, value in {**{key.replace("_", "-"): given for key, given in named.items()}, **options}.items():
            _set(place[0], name.encode(), value)
    except BaseException:
        lib.cowhand_destroy(place)
        raise
    return place


def connect(path: Optional[PathLike], driver: str, options: Mapping[str, Option], named: Mapping[str, Option]) -> Any:
    """Opens a disk; gives its handle, which the caller destroys."""
    place = prepare(path, driver, options, named)
    try:
        check(lib.cowhand_connect(place[0]))
    except BaseException:
        lib.cowhand_destroy(place)
        raise
    return place


def _set(disk: Any, name: bytes, value: Option) -> None:
    if isinstance(value, bool):
        check(lib.cowhand_set_bool(disk, name, value))
    elif isinstance(value, int):
        check(lib.cowhand_set_u64(disk, name, value))
    else:
        check(lib.cowhand_set_str(disk, name, os.fsencode(value)))


def write_flags(fua: bool) -> int:
    """Flags of a write."""
    return lib.COWHAND_REQ_FUA if fua else 0


def zero_flags(unmap: bool, fallback: bool, fua: bool) -> int:
    """Flags of a request for zeroes."""
    flags = write_flags(fua)
    flags |= 0 if unmap else lib.COWHAND_REQ_NO_UNMAP
    return flags | (0 if fallback else lib.COWHAND_REQ_NO_FALLBACK)
