#!/bin/sh
# Makes the certificates of this directory anew: a CA, a server for localhost, a client, and a
# client of another CA. Valid for a hundred years; for tests only.
set -e
cd "$(dirname "$0")"
key() { openssl ecparam -name prime256v1 -genkey -noout | openssl pkcs8 -topk8 -nocrypt -out "$1"; }
ca() {
    key "$1-key.pem"
    openssl req -x509 -new -key "$1-key.pem" -days 36500 -subj "/CN=$1" -out "$1.pem" \
        -addext "keyUsage=critical,keyCertSign" -addext "basicConstraints=critical,CA:true"
}
leaf() { # name, CA, usage
    key "$1-key.pem"
    openssl req -new -key "$1-key.pem" -subj "/CN=$1" -out request.csr
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=%s\nkeyUsage=critical,digitalSignature\n' "$3" > ext
    openssl x509 -req -in request.csr -CA "$2.pem" -CAkey "$2-key.pem" -CAcreateserial -days 36500 \
        -extfile ext -out "$1-cert.pem"
}
ca ca
ca stranger
leaf server ca serverAuth
leaf client ca clientAuth
leaf intruder stranger clientAuth
rm -f request.csr ext ca.srl stranger.srl ca-key.pem stranger-key.pem
