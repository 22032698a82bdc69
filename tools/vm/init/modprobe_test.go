package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModulesOf(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"modules.dep":   "kernel/net/nf-nat.ko: kernel/net/ct.ko kernel/lib/crc.ko\nkernel/net/ct.ko:\nkernel/crypto/aes.ko:\nkernel/crypto/aes-ni.ko: kernel/lib/x.ko\n",
		"modules.alias": "alias nft-chain-2-nat nf_nat\nalias crypto-aes aes\nalias crypto-aes aes_ni\nalias fs-* ct\nshort line\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nat := []string{"kernel/net/nf-nat.ko", "kernel/net/ct.ko", "kernel/lib/crc.ko"}
	for name, want := range map[string][][]string{
		"nf_nat":          {nat},
		"nft-chain-2-nat": {nat},
		"nft_chain_2_nat": {nat},
		"fs-overlay":      {{"kernel/net/ct.ko"}},
		"crypto-aes":      {{"kernel/crypto/aes.ko"}, {"kernel/crypto/aes-ni.ko", "kernel/lib/x.ko"}},
	} {
		got, err := modulesOf(dir, canonical(name))
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", name, err, d)
		}
	}
	if got, err := modulesOf(dir, "absent"); err == nil {
		t.Errorf("an absent module is %v", got)
	}
	if _, err := modulesOf(t.TempDir(), "nf_nat"); err == nil {
		t.Error("no error without modules.dep")
	}
}
