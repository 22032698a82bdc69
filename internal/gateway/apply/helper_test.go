package apply

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
)

// helperMain says "begin", applies, and says "applied".
func helperMain(text string) error {
	var b helperBrief
	if err := json.Unmarshal([]byte(text), &b); err != nil {
		return err
	}
	if b.Capabilities != nil {
		return lessen(b)
	}
	j, err := journal.At(b.Journal)
	if err != nil {
		return err
	}
	h := Host{Apply: apply.Options{Journal: j, Root: b.Root, ProcRoot: b.Proc}}
	if b.Netns != "" {
		if h.Netns, err = netns.At(b.Netns, "test"); err != nil {
			return err
		}
	}
	if b.Service != "" {
		return serviceMain(h, b.Service)
	}
	switch {
	case b.Undone != "":
		_, err := h.Undo(b.Undone)
		return err
	case b.Confirmed != "":
		_, err := apply.Confirm(b.Confirmed, h.options(h.keeps()))
		return err
	}
	fmt.Println("begin")
	r, err := h.Prepare(context.Background(), wish(b.Text))
	if err != nil {
		return err
	}
	if _, err := r.Apply(context.Background(), b.Confirm); err != nil {
		return err
	}
	fmt.Println("applied")
	return nil
}

// serviceMain is `natkit gateway run`.
func serviceMain(h Host, file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, unix.SIGHUP)
	s := Service{Host: h, File: file, Reload: reload, Getenv: os.Getenv, Log: func(line string) { fmt.Println(line) }}
	return s.Run(ctx)
}

// lessen begins anew in the namespace, with the capabilities of the brief alone: an
// exec gives root what is in the bounding set.
func lessen(b helperBrief) error {
	runtime.LockOSThread()
	ns, err := netns.At(b.Netns, "test")
	if err != nil {
		return err
	}
	if err := ns.Enter(); err != nil {
		return err
	}
	for c := 0; c <= unix.CAP_LAST_CAP; c++ {
		if !slices.Contains(b.Capabilities, c) {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
				return err
			}
		}
	}
	b.Netns, b.Capabilities = "", nil
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := os.Setenv(helperEnv, string(text)); err != nil {
		return err
	}
	return unix.Exec("/proc/self/exe", os.Args, os.Environ())
}
