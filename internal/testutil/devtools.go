//go:build linux

package testutil

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/natkit/natkit/internal/netns"
)

// Browser is one page of a headless Chromium, driven over a pipe by the Chrome DevTools
// Protocol (https://chromedevtools.github.io/devtools-protocol/). It ends with the test.
type Browser struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	session string

	mu sync.Mutex
	// id is that of the last command; waiting are those without an answer.
	id      int
	waiting map[int]chan message
	seen    BrowserSeen
	gone    error
}

// BrowserSeen is what a Browser did so far.
type BrowserSeen struct {
	// Requests are the addresses that it asked for, in order.
	Requests []string
	// Errors are exceptions of scripts, errors and warnings that they or the browser wrote to the
	// console: what a policy forbids, a file that is not there.
	Errors []string
}

// message is a command, its answer or an event.
type message struct {
	ID      int             `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// OpenBrowser starts that Chromium in a network namespace of the test, so that it reaches
// nothing else.
func OpenBrowser(t *testing.T, chromium string, ns *netns.Handle) *Browser {
	t.Helper()
	dir := t.TempDir()
	commands, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, answers, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--user-data-dir="+filepath.Join(dir, "data"),
		"--remote-debugging-pipe", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir, "TZ=UTC")
	cmd.ExtraFiles = []*os.File{commands, answers} // descriptors 3 and 4, where the browser expects them
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	Inside(t, ns, cmd.Start)
	commands.Close()
	answers.Close()
	b := &Browser{t: t, cmd: cmd, in: in, waiting: map[int]chan message{}}
	done := make(chan struct{})
	go b.listen(out, done)
	t.Cleanup(func() { b.close(done) })
	b.attach()
	return b
}

// attach opens the page that the commands are for.
func (b *Browser) attach() {
	b.t.Helper()
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
}

func (b *Browser) close(done <-chan struct{}) {
	b.in.Close() // the browser ends with its pipe
	select {
	case <-done:
	case <-time.After(Patience(10 * time.Second)):
	}
	_ = syscall.Kill(-b.cmd.Process.Pid, syscall.SIGKILL) // what is left of it
	_ = b.cmd.Wait()
}

// listen receives answers and events until the pipe ends.
func (b *Browser) listen(out *os.File, done chan<- struct{}) {
	defer close(done)
	defer out.Close()
	for r := bufio.NewReader(out); ; {
		text, err := r.ReadBytes(0)
		var m message
		if err == nil {
			err = json.Unmarshal(bytes.TrimSuffix(text, []byte{0}), &m)
		}
		if err != nil {
			b.fail(err)
			return
		}
		b.receive(m)
	}
}

func (b *Browser) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = err
	for id, waits := range b.waiting {
		close(waits)
		delete(b.waiting, id)
	}
}

func (b *Browser) receive(m message) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if waits := b.waiting[m.ID]; waits != nil {
		delete(b.waiting, m.ID)
		waits <- m
		return
	}
	b.note(m)
}

// note keeps what an event says of requests and errors.
func (b *Browser) note(m message) {
	var event struct {
		Request          struct{ URL string }
		Type             string
		Args             []struct{ Value, Description any }
		Entry            struct{ Level, Text, URL string }
		ExceptionDetails json.RawMessage
	}
	if json.Unmarshal(m.Params, &event) != nil {
		return
	}
	switch m.Method {
	case "Network.requestWillBeSent":
		if !strings.HasPrefix(event.Request.URL, "data:") {
			b.seen.Requests = append(b.seen.Requests, event.Request.URL)
		}
	case "Runtime.exceptionThrown":
		b.seen.Errors = append(b.seen.Errors, string(event.ExceptionDetails))
	case "Runtime.consoleAPICalled":
		if event.Type == "error" || event.Type == "warning" || event.Type == "assert" {
			b.seen.Errors = append(b.seen.Errors, fmt.Sprint("console: ", event.Args))
		}
	case "Log.entryAdded":
		if event.Entry.Level == "error" || event.Entry.Level == "warning" {
			b.seen.Errors = append(b.seen.Errors, event.Entry.Text+" "+event.Entry.URL)
		}
	}
}

// Seen returns what happened so far.
func (b *Browser) Seen() BrowserSeen {
	b.mu.Lock()
	defer b.mu.Unlock()
	return BrowserSeen{Requests: append([]string(nil), b.seen.Requests...), Errors: append([]string(nil), b.seen.Errors...)}
}

// call sends a command and decodes its result.
func (b *Browser) call(method string, params, result any) {
	b.t.Helper()
	answer, err := b.send(method, params)
	if err == nil && answer.Error != nil {
		err = fmt.Errorf("%s", answer.Error.Message)
	}
	if err == nil && result != nil {
		err = json.Unmarshal(answer.Result, result)
	}
	if err != nil {
		b.t.Fatalf("browser: %s: %v", method, err)
	}
}

func (b *Browser) send(method string, params any) (message, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return message{}, err
	}
	if params == nil {
		raw = nil
	}
	b.mu.Lock()
	if b.gone != nil {
		defer b.mu.Unlock()
		return message{}, fmt.Errorf("it ended: %w", b.gone)
	}
	b.id++
	waits := make(chan message, 1)
	b.waiting[b.id] = waits
	text, err := json.Marshal(message{ID: b.id, Method: method, Session: b.session, Params: raw})
	b.mu.Unlock()
	if err != nil {
		return message{}, err
	}
	if _, err := b.in.Write(append(text, 0)); err != nil {
		return message{}, err
	}
	select {
	case answer, ok := <-waits:
		if !ok {
			return message{}, fmt.Errorf("it ended")
		}
		return answer, nil
	case <-time.After(Patience(time.Minute)):
		return message{}, fmt.Errorf("no answer")
	}
}

// Open loads a page, and waits until it is there with all that belongs to it.
func (b *Browser) Open(url string) {
	b.t.Helper()
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	Eventually(b.t, "the page "+url, func() bool {
		var state string
		b.Eval("location.href !== 'about:blank' && document.readyState", &state)
		return state == "complete"
	})
}

// Eval decodes what a JavaScript expression, or the promise that it is, comes to.
func (b *Browser) Eval(expression string, got any) {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &answer)
	if answer.ExceptionDetails != nil {
		b.t.Fatalf("browser: %s: %s", expression, answer.ExceptionDetails)
	}
	if got == nil {
		return
	}
	if err := json.Unmarshal(answer.Result.Value, got); err != nil {
		_ = json.Unmarshal([]byte("null"), got) // undefined, or false for a string
	}
}

// Until waits until a JavaScript expression is true.
func (b *Browser) Until(expression string) {
	b.t.Helper()
	Eventually(b.t, expression, func() (met bool) {
		b.Eval("Boolean("+expression+")", &met)
		return met
	})
}

// Resize gives the page a window of that size, in CSS pixels, and a light or dark theme.
func (b *Browser) Resize(width, height int, dark bool) {
	b.t.Helper()
	theme := "light"
	if dark {
		theme = "dark"
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}}, nil)
}

// Script turns the execution of scripts on or off, from the next page on.
func (b *Browser) Script(on bool) {
	b.t.Helper()
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": !on}, nil)
}

// Press presses a key, such as Tab or Enter.
func (b *Browser) Press(key string, code int) {
	b.t.Helper()
	for _, kind := range []string{"rawKeyDown", "keyUp"} {
		b.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}, nil)
	}
}

// Screenshot returns the whole page, what is below the window included, as a PNG.
func (b *Browser) Screenshot() []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png", "captureBeyondViewport": true}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
