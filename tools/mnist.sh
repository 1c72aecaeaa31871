#!/usr/bin/env bash
# Downloads MNIST into the folder $1/mnist and checks the bytes: what e2e tests train on where no data sets lie beside
# the checkout. FEDCIPHER_DATA=$1 then names the folder to the tests.
set -euo pipefail
mkdir -p "$1/mnist"
cd "$1/mnist"
sums='ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db  train-images-idx3-ubyte
65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5  train-labels-idx1-ubyte
0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7  t10k-images-idx3-ubyte
ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2  t10k-labels-idx1-ubyte'
while read -r _ file; do
    [ -f "$file" ] || curl -fsSL "https://storage.googleapis.com/cvdf-datasets/mnist/$file.gz" | gunzip > "$file"
done <<< "$sums"
sha256sum --check --quiet <<< "$sums"
