#!/bin/sh
# link-shared.sh ARCHIVE DIRECTORY VERSION: links libcowhand.so of a static library, as packages install it: with the soname, with symbol
# versions, and with no other symbol visible. The library that cargo links has none of these: rustc gives the linker a list of symbols of
# its own, beside which linkers take no version script.
set -eu
archive=$1
directory=$2
version=$3
here=$(dirname "$0")
major=${version%%.*}
mkdir -p "$directory"
${CC:-cc} -shared -o "$directory/libcowhand.so.$version" \
    -Wl,-soname,"libcowhand.so.$major" -Wl,--version-script="$here/cowhand.map" -Wl,--no-undefined-version \
    -Wl,--gc-sections -Wl,-z,relro -Wl,-z,now -Wl,--no-undefined \
    -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
    -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc
ln -sf "libcowhand.so.$version" "$directory/libcowhand.so.$major"
ln -sf "libcowhand.so.$major" "$directory/libcowhand.so"
