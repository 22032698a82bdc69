package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/natkit/natkit/internal/snapshot"
)

// readTablesMain prints the rows of each table below the directories and files that it is given as lines of JSON, by the columns
// that the files themselves name.
func readTablesMain() {
	for _, root := range os.Args[1:] {
		err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(name, ".parquet") {
				return err
			}
			return readTable(name)
		})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func readTable(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	reader := parquet.NewReader(f)
	defer reader.Close()
	for {
		row := map[string]any{}
		if err := reader.Read(&row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(row); err != nil {
			return err
		}
	}
}

// renameHostMain copies a bundle as that of a host of another name, which is quoted as in Go.
func renameHostMain() {
	if err := renameHost(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func renameHost(quoted, from, to string) error {
	host, err := strconv.Unquote(`"` + quoted + `"`)
	if err != nil {
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := snapshot.NewBundleReader(in, nil)
	if err != nil {
		return err
	}
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer out.Close()
	r.Header.Host.Name = host
	w, err := snapshot.NewBundleWriter(out, r.Header)
	if err != nil {
		return err
	}
	for {
		name, data, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err == nil {
			err = w.Add(name, data)
		}
		if err != nil {
			return err
		}
	}
}

// TestNodeOfRecording: a recording's rows have the name of its host, whatever that is; --node goes before it.
func TestNodeOfRecording(t *testing.T) {
	for _, tt := range []struct{ node, of, want string }{{"", "gw/1", "gw/1"}, {"", "..", ".."}, {"gw-2", "gw/1", "gw-2"}} {
		if got, err := (&tableFlags{node: tt.node}).named(tt.of, true); err != nil || got != tt.want {
			t.Errorf("--node %q of %q is %q, want %q: %v", tt.node, tt.of, got, tt.want, err)
		}
	}
}
