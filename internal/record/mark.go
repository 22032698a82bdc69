//go:build linux

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
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/ring"
)

// Marks come to the recorder as files of a directory that only its owner may write to.
const (
	markSuffix = ".mark"
	// longestMark bounds the text of a mark, mostMarks how many wait.
	longestMark = 1000
	mostMarks   = 100
	markBytes   = 1 << 16
)

// mark is one that waits for the recorder.
type mark struct {
	Time   time.Time `json:"time"`
	Uptime int64     `json:"uptime_ns"`
	Text   string    `json:"text"`
}

// Mark has a running recorder note a moment, and keep the minutes around it.
func Mark(dir, text string) (time.Time, error) {
	now := time.Now().UTC()
	refused := func(err error) (time.Time, error) { return now, fmt.Errorf("mark the recording in %s: %w", dir, err) }
	if len(text) > longestMark {
		return now, fmt.Errorf("mark the recording in %s: the text has %d bytes, at most %d fit", dir, len(text), longestMark)
	}
	if err := permit.Output(dir); err != nil {
		return refused(err)
	}
	if _, err := os.Stat(filepath.Join(dir, marksDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return refused(err)
	}
	if !disk.IsHeld(filepath.Join(dir, lockName)) {
		return refused(errors.New("no natkit record is running there; start it, or give its --dir"))
	}
	data, err := json.Marshal(mark{now, int64(uptime()), text})
	if err != nil {
		return refused(err)
	}
	name := filepath.Join(dir, marksDir, fmt.Sprintf("%020d-%d%s", now.UnixNano(), os.Getpid(), markSuffix))
	if err := disk.Create(name, 0o600, disk.Text(data)); err != nil {
		return refused(err)
	}
	return now, nil
}

// takeMarks takes those that wait.
func (r *recorder) takeMarks(at ring.Stamp) error {
	entries, err := os.ReadDir(filepath.Join(r.Dir, marksDir))
	if err != nil {
		return nil // a person has removed it
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), markSuffix) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:min(len(names), mostMarks)] {
		path := filepath.Join(r.Dir, marksDir, name)
		var m mark
		data, err := disk.ReadPlain(path, markBytes)
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if errRemove := os.Remove(path); errRemove != nil {
			r.Note(errRemove)
			return nil // it would come again
		}
		if err != nil {
			r.Note(fmt.Errorf("read the mark %s: %w", name, err))
			continue
		}
		when := ring.Stamp{Wall: m.Time, Uptime: time.Duration(m.Uptime)}
		if err := r.marked(at, when, m.Text); err != nil {
			return err
		}
	}
	return nil
}

func (r *recorder) marked(at, when ring.Stamp, text string) error {
	e := ring.Event{Event: ring.EventMark, Text: text, Of: at.Wall}
	// What is kept is around the snapshot that follows the mark.
	r.await(pending{at: at, due: time.Now().Add(r.After), event: e})
	return r.event(when, e)
}
