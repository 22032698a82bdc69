//go:build linux

package testutil

import (
	"bytes"
	"context"
	"encoding/json"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"
)

// Browse opens a page in that Chromium, headless and without a network, in a window of "1400,1000"
// or another size, and decodes into got the JSON that the page's script leaves in
// <pre id="result">. It needs root: the browser gets an empty network namespace.
func Browse(t *testing.T, chromium string, page []byte, window string, got any) {
	t.Helper()
	NeedRoot(t)
	dir := t.TempDir()
	name := filepath.Join(dir, "page.html")
	if err := os.WriteFile(name, page, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), Patience(time.Minute))
	defer cancel()
	cmd := exec.CommandContext(ctx, chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--enable-logging=stderr",
		"--user-data-dir="+filepath.Join(dir, "data"), "--window-size="+window, "--dump-dom", "file://"+name)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	dom, err := cmd.Output()
	if err != nil {
		t.Fatalf("chromium: %v\n%s", err, &stderr)
	}
	found := regexp.MustCompile(`(?s)<pre id="result">(.*?)</pre>`).FindSubmatch(dom)
	if found == nil {
		t.Fatalf("the page's script left no result:\n%s", bytes.Join(regexp.MustCompile(".*CONSOLE.*").FindAll(stderr.Bytes(), -1), []byte("\n")))
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(found[1]))), got); err != nil {
		t.Fatalf("%v in %s", err, found[1])
	}
}
