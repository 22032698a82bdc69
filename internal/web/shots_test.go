//go:build linux

package web

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/state"
	"github.com/natkit/natkit/internal/testutil"
)

func TestShots(t *testing.T) {
	dir := os.Getenv("SHOTS")
	if dir == "" {
		t.Skip()
	}
	chromium := testutil.NeedNightlyProgram(t, "chromium")
	ns := testutil.Namespace(t)
	testutil.Run(t, ns, "", "ip", "link", "set", "lo", "up")
	b := testutil.OpenBrowser(t, chromium, ns)
	defer func() { t.Log(b.Seen()) }()
	for name, s := range map[string]*state.State{"healthy": healthy(), "fault": faulty(), "stale": stale(), "empty": empty(), "unprivileged": unprivileged(), "several": several()} {
		var l net.Listener
		testutil.Inside(t, ns, func() (err error) { l, err = net.Listen("tcp", "127.0.0.1:0"); return err })
		began := time.Now()
		srv := &http.Server{Handler: Handler(Options{State: func() state.State { return *s }, Host: "gw-7", Now: func() time.Time { return noon.Add(time.Since(began)) }})}
		go srv.Serve(l)
		for _, width := range []int{360, 768, 1440} {
			for _, dark := range []bool{false, true} {
				b.Resize(width, 900, dark)
				b.Open(fmt.Sprintf("http://%s/?netns=4026532002", l.Addr()))
				b.Until("document.body.dataset.state === 'live' || document.body.dataset.state === 'stale'")
				var wide bool
				b.Eval("document.documentElement.scrollWidth > document.documentElement.clientWidth", &wide)
				if wide {
					t.Errorf("%s at %d: scrolls horizontally", name, width)
				}
				file := fmt.Sprintf("%s-%d-%v.png", name, width, dark)
				if err := os.WriteFile(filepath.Join(dir, file), b.Screenshot(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		srv.Close()
	}
	t.Log(b.Seen().Errors)
}
