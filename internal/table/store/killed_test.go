package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/table"
	"github.com/natkit/natkit/internal/testutil"
)

// What TestMain writes a table to, until it is killed; the endpoint is of a store.
const (
	killedTo       = "NATKIT_TEST_TABLES"
	killedEndpoint = "NATKIT_TEST_TABLES_ENDPOINT"
)

func TestMain(m *testing.M) {
	if to := os.Getenv(killedTo); to != "" {
		fmt.Fprintln(os.Stderr, writeForever(to, os.Getenv(killedEndpoint)))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// writeForever writes rows that are hardly compressed.
func writeForever(to, endpoint string) error {
	s, err := Open(context.Background(), Options{To: to, Node: "gw-1", Version: "1.2.3", Now: noon, S3: S3{Endpoint: endpoint, AccessKey: testKey, SecretKey: testSecret}})
	if err != nil {
		return err
	}
	defer s.Abort()
	sink := Of[table.Finding](s)
	for {
		row := findings(1, 0)[0]
		row.Title = rand.Text()
		if err := sink.Add(row); err != nil {
			return err
		}
	}
}

// killAmid kills a process that writes tables as soon as some of them is there.
func killAmid(t *testing.T, to, endpoint string, some func() bool) {
	t.Helper()
	var says strings.Builder
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), killedTo+"="+to, killedEndpoint+"="+endpoint)
	cmd.Stderr = &says
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); says.Len() > 0 {
			t.Errorf("it ended by itself: %s (%v)", says.String(), err)
		}
	}()
	testutil.Eventually(t, "a table of which some is written", some)
}

// A process that is killed leaves a hidden file alone, and the files of before as they were.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	add(t, s, findings(100, 0))
	if err := s.Commit(); err != nil {
		t.Fatal(err)
	}
	hidden := filepath.Join(dir, table.Findings, "day=2026-11-30", "node=gw-1", ".natkit-*.tmp")
	killAmid(t, dir, "", func() bool {
		names, _ := filepath.Glob(hidden)
		info, err := os.Stat(strings.Join(names, ""))
		return err == nil && info.Size() > 1<<20
	})
	var visible []string
	for _, name := range files(t, dir) {
		if strings.HasSuffix(name, ".parquet") {
			visible = append(visible, filepath.Join(dir, name))
		}
	}
	if len(visible) != 1 {
		t.Fatalf("visible: %v", visible)
	}
	if rows, err := parquet.ReadFile[table.Finding](visible[0]); err != nil || len(rows) != 100 {
		t.Errorf("%d rows of before, %v", len(rows), err)
	}
	if names, _ := filepath.Glob(hidden); len(names) != 1 {
		t.Errorf("hidden: %v", names)
	}
}
