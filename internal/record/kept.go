package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/ring"
)

// keptTime is how names of directories begin.
const keptTime = "20060102T150405.000Z"

const (
	keptDir = "kept"
	// marksDir is where marks wait for the recorder.
	marksDir = "marks"
	// partial is how a directory is called until it is whole.
	partial = ".part-"
	// What is in a directory of what was kept: the two snapshots of the trigger, the minutes around it as a ring of its
	// own, headers of packets, and what triggered.
	bundleName  = "bundle.tar.gz"
	packetsName = "packets.pcapng"
	whyName     = "trigger.json"
	ringName    = "00000001" + ring.Suffix
)

// Schemas of documents.
const (
	WhySchema   = "natkit.trigger/1"
	ListSchema  = "natkit.record-list/1"
	EventSchema = "natkit.record-event/1"
)

// EventLine is an event as a recorder prints it.
type EventLine struct {
	Schema string `json:"schema"`
	ring.RecordedEvent
}

// Why is the document beside what was kept.
type Why struct {
	Schema string `json:"schema"`
	// At is the time of the snapshot that triggered.
	At time.Time `json:"time"`
	ring.Event
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
	// Snapshots are those of the ring beside it.
	Snapshots int `json:"snapshots"`
	// Missing is why the bundle or the packets are not there.
	Missing string `json:"missing,omitempty"`
}

// whyBytes bounds that document.
const whyBytes = 1 << 20

// Trigger is what a directory was kept for; the error is fs.ErrNotExist in any other.
func Trigger(dir string) (w Why, err error) {
	data, err := disk.ReadPlain(filepath.Join(dir, whyName), whyBytes)
	if err != nil {
		return w, err
	}
	if err := json.Unmarshal(data, &w); err != nil {
		return w, fmt.Errorf("parse %s: %w", whyName, err)
	}
	if w.Schema != WhySchema {
		return w, fmt.Errorf("parse %s: its form is %.40q, and this natkit reads %s: use a newer one", whyName, w.Schema, WhySchema)
	}
	return w, nil
}

// List returns what was kept in the directory of a recording, the oldest first. Of one that has neither a ring nor what was kept the
// error is ring.ErrNone.
func List(dir string) ([]report.Kept, error) {
	all := []report.Kept{}
	base := filepath.Join(dir, keptDir)
	if isKept(dir) {
		base = dir
	}
	entries, err := readDir(base)
	if errors.Is(err, fs.ErrNotExist) {
		if !ring.Is(disk.Plain(dir)) {
			return nil, ring.ErrNone
		}
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // in the order of names, which is that of time
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(base, e.Name())
		w, err := Trigger(path)
		if err != nil { // a person has changed it; the others are there
			w = Why{At: keptAt(e), Event: ring.Event{Event: "unknown"}, Missing: disk.Cause(err).Error()}
			if errors.Is(err, fs.ErrNotExist) {
				w.Missing = whyName + " is missing"
			}
		}
		all = append(all, report.Kept{Dir: path, At: w.At, Event: w.Event.Event, ID: w.ID, Severity: w.Severity, Text: w.Text,
			From: w.From, To: w.To, Snapshots: w.Snapshots, Bytes: sizeOf(path), Missing: w.Missing})
	}
	return all, nil
}

// Alone returns what was kept in a directory without the ring beside it: that of a recorder whose ring is gone, or its kept. It is nil
// for anything else, such as a directory with recordings of several hosts.
func Alone(dir string) []report.Kept {
	if !isKept(dir) && (holdsOthers(dir) || !isKept(filepath.Join(dir, keptDir))) {
		return nil
	}
	all, _ := List(dir)
	return all
}

// isKept reports whether a directory is one of what the triggers of one host kept.
func isKept(dir string) bool {
	entries, err := readDir(dir)
	triggers, hosts := 0, map[string]bool{}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir() && exists(filepath.Join(path, whyName)):
			triggers++
			hosts[ring.HostOf(disk.Plain(path))] = true
		case e.IsDir() && ring.Is(disk.Plain(path)), isRecorded(e):
			return false
		}
	}
	return err == nil && triggers > 0 && len(hosts) == 1
}

// readDir is os.ReadDir, and opens nothing else: of a pipe it would wait for a writer.
func readDir(dir string) ([]fs.DirEntry, error) {
	switch info, err := os.Stat(dir); {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, fmt.Errorf("%s is not a directory", dir)
	}
	return os.ReadDir(dir)
}

// holdsOthers reports whether a directory has more than what a recorder makes beside the ring, or the ring.
func holdsOthers(dir string) bool {
	entries, err := readDir(dir)
	return err != nil || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return isRecorded(e) || e.IsDir() && e.Name() != keptDir && e.Name() != marksDir
	})
}

// isRecorded reports whether a file is a bundle or a segment, by its name.
func isRecorded(e fs.DirEntry) bool {
	return !e.IsDir() && (strings.HasSuffix(e.Name(), ".tar.gz") || strings.HasSuffix(e.Name(), ring.Suffix))
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// keptAt is the time in a name of keptName; of another one that of the directory.
func keptAt(e fs.DirEntry) time.Time {
	text, _, _ := strings.Cut(e.Name(), "-")
	at, err := time.Parse(keptTime, text)
	if info, errInfo := e.Info(); err != nil && errInfo == nil {
		return info.ModTime()
	}
	return at
}

// sizeOf sums the files of a directory.
func sizeOf(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil
	})
	return bytes
}
