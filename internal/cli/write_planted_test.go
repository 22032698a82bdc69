package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/testutil"
)

// writing verbs, with FILE where the name of what they write stands.
var writingVerbs = []string{
	"simulate --csv FILE", "simulate --html FILE", "snapshot --for 0 --output FILE",
	"profile --for 100ms --flame FILE", "profile --for 100ms --pprof FILE", "profile --for 100ms --folded FILE",
	"lab run SCENARIO --html FILE", "lab run SCENARIO --pcap DIR",
	"record export RING --at WHEN --output FILE", "doctor --from NODES --html FILE",
}

// creatingVerbs refuse a name that is taken (O_EXCL), so that they follow no link.
var creatingVerbs = []string{"plan --write DIR"}

// TestPlantedLinksAreReplaced: what another user put where a verb is to write, in a
// directory for all, is replaced and never followed.
func TestPlantedLinksAreReplaced(t *testing.T) {
	testutil.NeedRoot(t) // things of another user
	testutil.NeedProgram(t, "nginx")
	testutil.ShareHost(t) // a lab ends where the host's limit changes
	const other = 12345
	scenario := filepath.Join(t.TempDir(), "planted.yaml")
	if err := os.WriteFile(scenario, []byte(shortScenario), 0o600); err != nil {
		t.Fatal(err)
	}
	recording, when := recordingOf(t)
	nodes := t.TempDir()
	if err := os.CopyFS(filepath.Join(nodes, "a"), os.DirFS(recording)); err != nil {
		t.Fatal(err)
	}
	for _, args := range writingVerbs {
		t.Run(args, func(t *testing.T) {
			dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			name := filepath.Join(dir, "x")
			if strings.Contains(args, "DIR") {
				name = filepath.Join(dir, "healthy-client.pcapng")
			}
			for _, step := range []error{os.Chmod(dir, 0o777|os.ModeSticky), os.WriteFile(victim, []byte("kept"), 0o600),
				os.Symlink(victim, name), os.Lchown(name, other, other)} {
				if step != nil {
					t.Fatal(step)
				}
			}
			line := strings.NewReplacer("FILE", name, "DIR", dir, "SCENARIO", scenario, "RING", recording, "WHEN", when, "NODES", nodes).Replace(args)
			var stdout, stderr bytes.Buffer
			ctx, idle := context.WithCancel(t.Context())
			defer idle()
			go func() { // a profile of an idle machine is empty
				for ctx.Err() == nil {
					unix.Getppid()
				}
			}()
			if code := Run(t.Context(), *testEnv(&stdout, &stderr), strings.Fields(line)); code != exitOK && code != exitFindings && code != exitIncomplete {
				t.Errorf("exit code %d: %s", code, &stderr)
			}
			kept, err := os.ReadFile(victim)
			if err != nil || string(kept) != "kept" {
				t.Errorf("the link was followed: %d bytes, %v", len(kept), err)
			}
			if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// recordingOf records until there are two snapshots, and returns the directory and the time of the last one.
func recordingOf(t *testing.T) (dir, when string) {
	dir = filepath.Join(t.TempDir(), "ring")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int)
	var stdout, stderr bytes.Buffer
	go func() {
		ended <- Run(ctx, *testEnv(&stdout, &stderr), []string{"record", "--dir", dir, "--every", "1s", "--outcomes", "0", "--on", "none"})
	}()
	testutil.Eventually(t, "two snapshots", func() bool {
		r, err := ring.Open(os.DirFS(dir))
		if err != nil {
			return false
		}
		c := r.Contents()
		when = c.To.Format(time.RFC3339)
		return c.Snapshots >= 2
	})
	stop()
	if code := <-ended; code != exitOK {
		t.Fatalf("record: exit code %d: %s", code, &stderr)
	}
	return dir, when
}

// shortScenario has one stage of a few connections.
const shortScenario = `name: planted
title: a few connections
about: for tests
topology:
  nodes: [{name: client}, {name: server}]
  links:
    - - {node: client, address: 198.18.0.2/24}
      - {node: server, address: 198.18.0.1/24}
  server: {node: server, port: 80}
load: {from: client, requests: 5, concurrency: 1, timeout: 5s}
stages:
  - name: healthy
    about: nothing is wrong
    url: http://198.18.0.1/
`

// TestWritingVerbsAreAll: none is missing in the table above.
func TestWritingVerbsAreAll(t *testing.T) {
	everyVerb(t, func(path string, cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			value, usage := pflag.UnquoteUsage(f)
			if value != "FILE" && value != "DIR" || !strings.Contains(usage, "write") {
				return
			}
			for _, args := range slices.Concat(writingVerbs, creatingVerbs) {
				if strings.HasPrefix(args, path) && strings.Contains(args, fmt.Sprintf(" --%s ", f.Name)) {
					return
				}
			}
			t.Errorf("%s --%s writes a file and is in no case", path, f.Name)
		})
	})
}
