package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// List returns what was kept in the directory of a recording, the oldest first.
func List(dir string) ([]report.Kept, error) {
	if _, err := os.Stat(dir); err != nil {
		return nil, err
	}
	all := []report.Kept{}
	entries, err := os.ReadDir(filepath.Join(dir, keptDir))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries { // in the order of names, which is that of time
		if !e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(dir, keptDir, e.Name())
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
