#!/bin/sh
# install.sh ARCHIVE PREFIX VERSION: installs the shared library below PREFIX, an absolute path, where there is no package of it. ARCHIVE is
# the static library that cargo has built.
set -eu
archive=$1
prefix=$2
version=$3
here=$(dirname "$0")
mkdir -p "$prefix/include" "$prefix/lib/pkgconfig"
"$here/link-shared.sh" "$archive" "$prefix/lib" "$version"
cp "$here/include/cowhand.h" "$prefix/include/cowhand.h"
sed -e "s|@PREFIX@|$prefix|" -e "s|@LIBDIR@|$prefix/lib|" -e "s|@VERSION@|$version|" \
    "$here/cowhand.pc.in" >"$prefix/lib/pkgconfig/cowhand.pc"
