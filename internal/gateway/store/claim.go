package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/disk"
)

// Claim makes this process the one that keeps a gateway in force in the network
// namespace of an inode, until release or its end. who says what it is, in one line; of
// another one that has the claim the error is Claimed.
func (s *Store) Claim(inode uint64, who string) (release func(), err error) {
	if err := s.create(); err != nil {
		return nil, err
	}
	path := s.claimPath(inode)
	f, err := lockFile(path)
	if err != nil {
		return nil, err
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt([]byte(who+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("claim the gateway: write %s: %w", path, hint(err))
	}
	return func() { os.Remove(path); f.Close() }, nil
}

// lockFile locks the file at a path: one that was removed meanwhile, as its holder
// ended, is another's no more than this one's.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := disk.OpenLock(path)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("claim the gateway: %w", hint(err))
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer f.Close()
			if errors.Is(err, unix.EWOULDBLOCK) {
				return nil, Claimed(lineOf(f))
			}
			return nil, fmt.Errorf("claim the gateway: lock %s: %w", path, err)
		}
		locked, err := f.Stat()
		if there, errThere := os.Lstat(path); err == nil && errThere == nil && os.SameFile(locked, there) {
			return f, nil
		}
		f.Close()
	}
}

// Claimed says who keeps a gateway in force.
type Claimed string

func (c Claimed) Error() string {
	return fmt.Sprintf("%s keeps a gateway in force in this network namespace", string(c))
}

// Claimant is who keeps a gateway in force in the namespace; empty where nobody does,
// or where that cannot be seen.
func (s *Store) Claimant(inode uint64) string {
	f, err := os.OpenFile(s.claimPath(inode), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return ""
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return ""
	}
	return lineOf(f)
}

func (s *Store) claimPath(inode uint64) string { return s.path(fmt.Sprintf("run-%d.lock", inode)) }

// lineOf is the first line of a file, no longer than a terminal's.
func lineOf(f *os.File) string {
	text, _ := io.ReadAll(io.LimitReader(f, 200))
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, line)
}
