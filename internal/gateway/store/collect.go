package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/tune"
)

// Digests are those of all plans and texts that are kept.
func (s *Store) Digests() ([]string, error) {
	names, err := s.names()
	var out []string
	for _, name := range names {
		digest, _ := digestOf(name)
		out = append(out, digest)
	}
	return out, err
}

// Collect deletes what was put there before a moment and nobody names any more. The
// journal's lock must be held, so that nobody begins to name it.
func (s *Store) Collect(before time.Time, used func(digest string) bool) (deleted int, err error) {
	names, err := s.names()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	for _, name := range names {
		st, err := os.Lstat(s.path(name))
		if digest, _ := digestOf(name); err != nil || !st.ModTime().Before(before) || used(digest) {
			continue
		}
		if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return deleted, fmt.Errorf("clean gateway store: %w", hint(err))
		}
		deleted++
	}
	return deleted, nil
}

// names are those of the store's own files; a missing store is empty.
func (s *Store) names() ([]string, error) {
	err := disk.Trust(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open gateway store %w", hint(err))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read gateway store: %w", hint(err))
	}
	var names []string
	for _, e := range entries {
		if _, ok := digestOf(e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func digestOf(name string) (digest string, ok bool) {
	digest, isPlan := strings.CutSuffix(name, planSuffix)
	if !isPlan {
		digest, ok = strings.CutSuffix(name, textSuffix)
		if !ok {
			return "", false
		}
	}
	return digest, tune.IsDigest(digest)
}
