package netns_test

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/testutil"
)

func TestDoIsElsewhereAndComesBack(t *testing.T) {
	testutil.NeedRoot(t)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if ns.Inode() == here.Inode() {
		t.Fatal("New returned the namespace it was called in")
	}
	for range 20 { // threads that come back to the pool would show up soon
		err = ns.Do(func() error {
			links, err := net.Interfaces()
			if err == nil && (len(links) != 1 || links[0].Name != "lo") {
				t.Errorf("a new namespace has the interfaces %v", links)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		now, err := netns.At("/proc/thread-self/ns/net", "")
		if err != nil {
			t.Fatal(err)
		}
		if now.Inode() != here.Inode() {
			t.Fatalf("after Do a goroutine runs in namespace %d, not in %d", now.Inode(), here.Inode())
		}
		now.Close()
	}
}

// Sockets are the calling thread's; so is the namespace that nil stands for.
func TestInodeOfNilIsTheThreads(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	err = ns.Do(func() error {
		inode, err := netns.InodeOf(nil)
		if inode != ns.Inode() {
			t.Errorf("in namespace %d nil is %d", ns.Inode(), inode)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOfPID(t *testing.T) {
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	own, err := netns.OfPID(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if own.Inode() != here.Inode() {
		t.Errorf("OfPID(self) is %d, Current is %d", own.Inode(), here.Inode())
	}
	if _, err := netns.OfPID(1 << 30); err == nil || !strings.Contains(err.Error(), "no such process") {
		t.Errorf("OfPID of nobody: %v", err)
	}
}

func TestNamedRefusesPaths(t *testing.T) {
	for _, name := range []string{"", "../../proc/1/ns/net", "a/b", "does-not-exist"} {
		if h, err := netns.Named(name); err == nil {
			h.Close()
			t.Errorf("Named(%q) opened something", name)
		} else if !strings.Contains(err.Error(), "ip netns list") {
			t.Errorf("Named(%q): %v: does not say what to do", name, err)
		}
	}
}

func TestAllSeesWhatADescriptorHolds(t *testing.T) {
	testutil.NeedRoot(t)
	ns, err := netns.New("held")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	all, err := netns.All()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.CloseAll(all)
	for _, h := range all {
		if h.Inode() == ns.Inode() {
			return
		}
	}
	t.Errorf("namespace %d, held by this process, is not among %d found", ns.Inode(), len(all))
}

func TestAllHasEachOnce(t *testing.T) {
	all, err := netns.All()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.CloseAll(all)
	here, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	count := map[uint64]int{}
	for _, h := range all {
		count[h.Inode()]++
	}
	for inode, n := range count {
		if n != 1 {
			t.Errorf("namespace %d stands %d times", inode, n)
		}
	}
	if count[here.Inode()] != 1 {
		t.Errorf("this namespace (%d) is missing in %v", here.Inode(), count)
	}
}

// The runtime cannot end the process's first thread: were it left in another
// namespace, /proc/self would be of that one for good.
func TestFirstThreadStaysAtHome(t *testing.T) {
	testutil.NeedRoot(t)
	home, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for range 200 {
		ns, err := netns.New("elsewhere")
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != home {
			t.Fatalf("the process is in %s (%v), and was in %s", now, err, home)
		}
	}
}
