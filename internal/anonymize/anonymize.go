// Package anonymize replaces what names people, machines and networks in data that leaves a host: addresses by
// others of the same class that share their prefixes as before, hardware addresses, and words that neither the
// kernel nor natkit uses. The same key gives the same result.
package anonymize

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// Key is the secret. Who has it can find out what was replaced by trying.
type Key [sha256.Size]byte

// keyBytes is the least that a key file has.
const keyBytes = 16

// NewKey makes a key of a secret, such as a file's content, without the space around it.
func NewKey(secret []byte) (Key, error) {
	secret = bytes.TrimSpace(secret)
	if len(secret) < keyBytes {
		return Key{}, fmt.Errorf("the key has %d bytes, at least %d are required: openssl rand -hex 32 makes one", len(secret), keyBytes)
	}
	return sha256.Sum256(secret), nil
}

// Anonymizer replaces. It is for one goroutine at a time.
type Anonymizer struct {
	key Key
	// block encrypts with a key of its own, and padding is what stands behind the first i bits of an address in a block:
	// of IPv6, then of IPv4.
	block   cipher.Block
	padding [(addressBytes + 4) * 8][aes.BlockSize]byte
	// networks are flips by the part of an address that they depend on.
	networks map[network][addressBytes]byte
	words    map[string]string
}

// New returns one by a key.
func New(key Key) *Anonymizer {
	a := &Anonymizer{key: key, networks: map[network][addressBytes]byte{}, words: map[string]string{}}
	secret := a.mac("addresses", "")
	block, err := aes.NewCipher(secret[:16])
	if err != nil {
		panic(err) // of a key of another size
	}
	a.block = block
	for i := range a.padding {
		text := [aes.BlockSize]byte(secret[16:])
		text[0] ^= byte(i)
		block.Encrypt(a.padding[i][:], text[:])
	}
	return a
}

// mac is a number that nobody can compute without the key.
func (a *Anonymizer) mac(kind, text string) []byte {
	m := hmac.New(sha256.New, a.key[:])
	m.Write([]byte(kind + "\x00" + text))
	return m.Sum(nil)
}

var alphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// tagLen is how long a replaced name is: an interface's has 15 bytes at most, prefix included.
const tagLen = 8

// tag is the replacement of a name: 40 bits, which begin with a letter that no number and no address has.
func (a *Anonymizer) tag(name string) string {
	return "x" + alphabet.EncodeToString(a.mac("name", name))[:tagLen-1]
}

// Given replaces a name that people gave, whatever words it is made of.
func (a *Anonymizer) Given(name string) string {
	if name == "" {
		return ""
	}
	return a.tag(name)
}

// mostCached bounds what is kept of the addresses and words that were replaced.
const mostCached = 1 << 16

// BootID is the replacement of a boot's id, in the form of a UUID.
func (a *Anonymizer) BootID(id string) string {
	id = strings.TrimSpace(id)
	if id == "" {
		return id
	}
	m := a.mac("boot", id)
	return fmt.Sprintf("%x-%x-%x-%x-%x", m[:4], m[4:6], m[6:8], m[8:10], m[10:16])
}
