package main

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// place is one file system of the VM.
type place struct {
	kind, dir, options string
	flags              uintptr
	optional           bool
}

var places = []place{
	{kind: "proc", dir: "/proc"},
	{kind: "sysfs", dir: "/sys"},
	{kind: "devtmpfs", dir: "/dev"},
	{kind: "devpts", dir: "/dev/pts", options: "mode=620,ptmxmode=666"},
	{kind: "tmpfs", dir: "/dev/shm", options: "mode=1777"},
	{kind: "tmpfs", dir: "/run", options: "mode=755"},
	{kind: "cgroup2", dir: "/sys/fs/cgroup"},
	{kind: "bpf", dir: "/sys/fs/bpf", options: "mode=700"},
	{kind: "securityfs", dir: "/sys/kernel/security", optional: true},
	{kind: "debugfs", dir: "/sys/kernel/debug", optional: true},
	{kind: "tracefs", dir: "/sys/kernel/tracing", optional: true},
}

// madeDirs are those that a distribution's start-up makes.
var madeDirs = []string{"/run/lock", "/run/netns", "/var/log/nginx", "/var/lib/nginx", "/var/tmp", "/root"}

func mountAll() error {
	for _, p := range places {
		if err := os.MkdirAll(p.dir, 0o755); err != nil && !p.optional {
			return err
		}
		err := unix.Mount(p.kind, p.dir, p.kind, p.flags, p.options)
		// The kernel may have mounted /dev already (CONFIG_DEVTMPFS_MOUNT).
		if err != nil && !p.optional && !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("mount %s at %s: %w", p.kind, p.dir, err)
		}
	}
	for _, dir := range madeDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// As a distribution does it, so that mounts of a lab reach who they should.
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share the mounts: %w", err)
	}
	return links(map[string]string{"/dev/fd": "/proc/self/fd", "/dev/stdin": "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1", "/dev/stderr": "/proc/self/fd/2", "/var/run": "/run"})
}

func links(to map[string]string) error {
	for name, target := range to {
		if err := os.Symlink(target, name); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
