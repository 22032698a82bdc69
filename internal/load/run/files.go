package run

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reservedFiles are kept free in a worker's table for what is not a connection:
// standard streams, the epoll and event descriptors, Go's own.
const reservedFiles = 64

// fileLimit raises the soft limit of open files to the hard one and returns it.
// It holds per file table, so that workers with tables of their own have it each.
func fileLimit() (int, error) {
	var limit unix.Rlimit
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, nil, &limit); err != nil {
		return 0, fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < limit.Max {
		raised := unix.Rlimit{Cur: limit.Max, Max: limit.Max}
		if unix.Prlimit(0, unix.RLIMIT_NOFILE, &raised, nil) == nil {
			limit.Cur = limit.Max
		}
	}
	usable := int64(min(limit.Cur, 1<<30)) - reservedFiles
	if usable < 1 {
		return 0, fmt.Errorf("%d open files are allowed, too few for any connection: raise it with `ulimit -n`", limit.Cur)
	}
	return int(usable), nil
}

// privateFiles gives the calling thread, which must be one of [thread.Do], a file table of its own that holds the standard streams, the kept ones and
// the descriptors of Go's poller. Those must stay: the runtime may poll or wake
// itself from any thread, and another file under their number would be written
// to. The rest is closed, because a copy keeps pipes and namespaces alive.
func privateFiles(keep ...int) error {
	if err := startPoller(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FILES); err != nil {
		return fmt.Errorf("give a worker its own file table: %w", err)
	}
	numbers, err := openFiles()
	if err != nil {
		return nil // without /proc the copies stay open until the worker ends
	}
	link := make([]byte, 64)
	for _, fd := range numbers {
		if fd <= 2 || slices.Contains(keep, fd) {
			continue
		}
		n, err := unix.Readlink("/proc/thread-self/fd/"+strconv.Itoa(fd), link)
		if err != nil {
			continue
		}
		if to := string(link[:n]); !strings.HasPrefix(to, "anon_inode:[eventpoll") && !strings.HasPrefix(to, "anon_inode:[eventfd") {
			unix.Close(fd)
		}
	}
	return nil
}

// startPoller makes Go open its poller's descriptors, which it does with the first
// pollable file, so that the table is copied with them. Opened later, they would
// be missing in it, and a garbage collection that a worker takes part in would
// end the program ("netpoll failed").
func startPoller() error {
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make a pipe: %w", err)
	}
	r.Close()
	w.Close()
	return nil
}

// openFiles lists the calling thread's descriptors. It does without package os,
// which hands files to Go's poller.
func openFiles() ([]int, error) {
	dir, err := unix.Open("/proc/thread-self/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	var numbers []int
	buf := make([]byte, 8192)
	for {
		n, err := unix.Getdents(dir, buf)
		if err != nil {
			return nil, err
		}
		if n == 0 {
			return numbers, nil
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if fd, err := strconv.Atoi(name); err == nil && fd != dir {
				numbers = append(numbers, fd)
			}
		}
	}
}
