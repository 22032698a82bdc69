package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
)

// Destination returns what writing to a name writes to: the name itself, or what links
// lead to. A link, pipe or device that another user put into a sticky, world-writable
// directory is not followed or opened but replaced, as it is there to mislead: the
// kernel refuses the same where fs.protected_symlinks and fs.protected_fifos are set
// (may_follow_link, fs/namei.c). special reports a pipe or device to be written to
// in place.
func Destination(name string) (target string, special bool, err error) {
	if runtime.GOOS == "windows" {
		return inPlace(name)
	}
	const longestChain = 40 // MAXSYMLINKS, include/linux/namei.h
	for range longestChain {
		// What .. leads to depends on what the directories on the way really are.
		dir, file := filepath.Split(name)
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return name, false, nil
		}
		if err != nil {
			return name, false, err
		}
		name = filepath.Join(real, file)
		info, err := os.Lstat(name)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return name, false, err
		}
		mode := info.Mode()
		switch {
		case mode.IsDir():
			return "", false, syscall.EISDIR
		case mode.IsRegular():
			return name, false, nil
		}
		if planted, err := isPlanted(name, info); planted || err != nil {
			return name, false, err
		}
		if mode&fs.ModeSymlink == 0 {
			return name, true, nil
		}
		if strings.HasPrefix(filepath.Dir(name), "/proc/") { // an open file, whose name may be none: pipe:[123]
			info, err := os.Stat(name)
			return name, err == nil && !info.IsDir(), err
		}
		to, err := os.Readlink(name)
		if err != nil {
			return "", false, err
		}
		if !filepath.IsAbs(to) {
			to = real + "/" + to
		}
		name = to
	}
	return "", false, syscall.ELOOP
}

// inPlace is Destination where no other user plants links: what a link leads to is written to in place.
func inPlace(name string) (target string, special bool, err error) {
	info, err := os.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return name, false, nil
	case err != nil:
		return name, false, err
	case info.IsDir():
		return "", false, syscall.EISDIR
	}
	return name, !info.Mode().IsRegular(), nil
}
