// A second implementation of what `oneshot` seals with: Go's own, from version 1.26 on.
//
//	go run tools/hpke.go                          a line for crates/fedcipher-core/tests/hpke.in
//	go run tools/hpke.go SECRET INFO SEALED       opens what Fedcipher has sealed; all in hex
package main

import (
	"crypto/hpke"
	"encoding/hex"
	"fmt"
	"os"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func main() {
	kem, kdf, aead := hpke.MLKEM768X25519(), hpke.SHAKE256(), hpke.AES256GCM()
	if len(os.Args) == 4 {
		in := [3][]byte{}
		for i := range in {
			in[i] = must(hex.DecodeString(os.Args[i+1]))
		}
		secret := must(kem.NewPrivateKey(in[0]))
		fmt.Printf("%x\n", must(hpke.Open(secret, kdf, aead, in[1], in[2])))
		return
	}
	secret, info, text := must(kem.GenerateKey()), []byte("here"), []byte("words")
	sealed := must(hpke.Seal(secret.PublicKey(), kdf, aead, info, text))
	fmt.Printf("go %x %x %x %x\n", must(secret.Bytes()), info, text, sealed)
}
