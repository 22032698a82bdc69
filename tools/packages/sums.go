package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"aead.dev/minisign"
)

// sums is the text of SHA256SUMS, as sha256sum(1) writes and checks it.
func sums(dir string, names []string) (string, error) {
	sort.Strings(names)
	var out strings.Builder
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(text), name)
	}
	return out.String(), nil
}

// keyEnv names the file of minisign's secret key, passwordEnv has its password.
const (
	keyEnv      = "NATKIT_SIGNING_KEY"
	passwordEnv = "NATKIT_SIGNING_PASSWORD"
)

// sign writes the signature of SHA256SUMS beside it, in the format of minisign(1), where a key is given; done is false
// where none is.
func sign(dir, text string, s Source, getenv func(string) string) (done bool, err error) {
	file := getenv(keyEnv)
	if file == "" {
		return false, nil
	}
	key, err := minisign.PrivateKeyFromFile(getenv(passwordEnv), file)
	if err != nil {
		return false, fmt.Errorf("read the signing key %s: %w; %s has the password", file, err, passwordEnv)
	}
	signature := minisign.SignWithComments(key, []byte(text), "natkit "+s.Version, "signature of natkit's SHA256SUMS")
	return true, os.WriteFile(filepath.Join(dir, "SHA256SUMS.minisig"), signature, 0o644)
}
