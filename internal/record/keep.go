//go:build linux

package record

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/ring"
	"github.com/natkit/natkit/internal/watch"
	"golang.org/x/sys/unix"
)

// mostPending bounds triggers that wait for their minutes.
const mostPending = 16

// pending is a trigger whose minutes are not over.
type pending struct {
	at    ring.Stamp
	due   time.Time
	event ring.Event
	// full is set where the disk was full when they were to be kept.
	full bool
}

// retryFull is when minutes that a full disk had no room for are tried again.
const retryFull = 30 * time.Second

// isFull reports whether there was no room on the disk.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// keeper keeps the minutes around triggers.
type keeper struct {
	Options
	waiting []pending
}

// add reports whether there was room for it.
func (k *keeper) add(p pending) bool {
	if len(k.waiting) >= mostPending {
		return false
	}
	k.wait(p)
	return true
}

// wait puts it among the others by when it is due.
func (k *keeper) wait(p pending) {
	at := slices.IndexFunc(k.waiting, func(other pending) bool { return other.due.After(p.due) })
	if at < 0 {
		at = len(k.waiting)
	}
	k.waiting = slices.Insert(k.waiting, at, p)
}

// await has the minutes around a trigger kept when they are over.
func (r *recorder) await(p pending) {
	if !r.keeper.add(p) {
		r.Note(fmt.Errorf("%d triggers wait for their minutes already; those around %s are not kept, but in the ring: 'natkit record export --at %s' writes them",
			mostPending, p.at.Wall.Format(time.RFC3339), p.at.Wall.Format(time.RFC3339)))
	}
}

// clean removes what a recorder that was killed has left.
func (k *keeper) clean() {
	left, _ := filepath.Glob(filepath.Join(k.Dir, keptDir, partial+"*"))
	for _, dir := range left {
		os.RemoveAll(dir)
	}
	disk.RemoveLeftovers(filepath.Join(k.Dir, marksDir))
}

// resume has what a recorder that was killed did not keep any more kept: triggers of the last minutes of the ring.
func (k *keeper) resume(r *ring.Ring, now time.Time) error {
	_, newest, err := r.Newest()
	if err != nil {
		return nil // there is nothing to keep
	}
	kept := map[time.Time]bool{}
	var triggers []pending
	for f := range r.All() {
		if f.Kind != ring.KindEvent {
			continue
		}
		e, err := r.Event(f)
		if err != nil {
			return err
		}
		switch e.Event {
		case ring.EventKept:
			kept[e.Of] = true
		case ring.EventTrigger, ring.EventMark:
			if at := (ring.Stamp{Wall: e.Of, Uptime: f.Uptime}); newest.Wall.Sub(e.Of) <= k.Before+k.After {
				triggers = append(triggers, pending{at: at, due: now, event: e})
			}
		}
	}
	for _, p := range triggers {
		if !kept[p.at.Wall] {
			k.add(p)
		}
	}
	return nil
}

// keepDue keeps what is due.
func (r *recorder) keepDue(now time.Time, at ring.Stamp) error {
	for len(r.keeper.waiting) > 0 && !now.Before(r.keeper.waiting[0].due) {
		if err := r.keepNext(at, now.Add(r.retryFull)); err != nil {
			return err
		}
	}
	return nil
}

// keepAll keeps what waits, with what there is of the minutes after it.
func (r *recorder) keepAll(at ring.Stamp) error {
	for len(r.keeper.waiting) > 0 {
		if err := r.keepNext(at, time.Time{}); err != nil {
			return err
		}
	}
	return nil
}

// keepNext keeps the first that waits. Where the disk is full it is tried again at a time, as long as the ring has the minutes, unless
// that is zero.
func (r *recorder) keepNext(at ring.Stamp, again time.Time) error {
	p := r.keeper.waiting[0]
	r.keeper.waiting = r.keeper.waiting[1:]
	began := watch.CPUTime()
	dir, err := r.keeper.keep(p)
	r.besides += watch.CPUTime() - began
	if isFull(err) && !again.IsZero() {
		if !p.full {
			r.Note(fmt.Errorf("keep the minutes around %s: %w; they are kept when there is room", p.at.Wall.Format(time.RFC3339), err))
		}
		p.due, p.full = again, true
		r.keeper.wait(p)
		return nil
	}
	if err != nil {
		r.end.NotKept++
		at := p.at.Wall.Format(time.RFC3339)
		r.Note(fmt.Errorf("keep the minutes around %s: %w; they are in the ring: 'natkit record export --at %s' writes them", at, err, at))
		return nil
	}
	r.end.Kept++
	return r.event(at, ring.Event{Event: ring.EventKept, Text: p.event.Text, ID: p.event.ID, Severity: p.event.Severity, Kept: dir, Of: p.at.Wall})
}

// keep copies the minutes into a directory of their own, which appears whole.
func (k *keeper) keep(p pending) (dir string, err error) {
	from, to := p.at.Wall.Add(-k.Before), p.at.Wall.Add(k.After)
	r, err := ring.Open(disk.Plain(k.Dir))
	if err != nil {
		return "", err
	}
	bytes := r.Bytes(from, to)
	if bytes == 0 {
		return "", errors.New("the ring does not have them any more")
	}
	if err := k.makeRoom(bytes); err != nil {
		return "", err
	}
	base := filepath.Join(k.Dir, keptDir)
	temp, err := os.MkdirTemp(base, partial)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temp) // fails after the rename, as it should
	w := Why{Schema: WhySchema, At: p.at.Wall, Event: p.event, From: from, To: to}
	has := int64(0)
	if err := k.put(filepath.Join(temp, ringName), &has, k.Most, func(out io.Writer) (err error) {
		w.Snapshots, err = r.Copy(out, from, to)
		return err
	}); err != nil {
		return "", err
	}
	var missing []error
	missing = append(missing, k.put(filepath.Join(temp, bundleName), &has, k.Most/besidesPart, func(out io.Writer) error {
		return Bundle(out, r, p.at.Wall, k.Version)
	}))
	if k.Packets {
		missing = append(missing, k.put(filepath.Join(temp, packetsName), &has, k.Most/besidesPart, func(out io.Writer) error {
			return ring.WritePcapng(out, r, from, to, k.Version)
		}))
	}
	if err := errors.Join(missing...); isFull(err) {
		return "", err
	} else if err != nil {
		w.Missing = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	data, err := json.MarshalIndent(w, "", " ")
	if err == nil {
		err = disk.Create(filepath.Join(temp, whyName), 0o600, disk.Text(append(data, '\n')))
	}
	if err != nil {
		return "", err
	}
	dir = filepath.Join(base, keptName(p))
	for n := 2; exists(dir); n++ {
		dir = filepath.Join(base, fmt.Sprintf("%s-%d", keptName(p), n))
	}
	return dir, cmp.Or(os.Rename(temp, dir), disk.SyncDir(base))
}

// besidesPart is the part of what is kept in all that a bundle, and headers as pcapng, may take of one trigger. They are not
// compressed as in the ring, where they are as well.
const besidesPart = 8

// put writes a file of at most so many bytes; one that could not be written is not there. What the directory has grows by it,
// and older ones make room.
func (k *keeper) put(name string, has *int64, most int64, write func(io.Writer) error) error {
	before := *has
	err := disk.Create(name, 0o600, func(out io.Writer) error {
		// In large parts, as each looks what is there.
		b := bufio.NewWriterSize(&bounded{k: k, out: out, has: has, left: most}, 1<<20)
		if err := write(b); err != nil {
			return err
		}
		return b.Flush()
	})
	if err != nil {
		*has = before
	}
	return err
}

// bounded makes room for what it writes, and writes no more than what is left.
type bounded struct {
	k    *keeper
	out  io.Writer
	has  *int64
	left int64
}

func (b *bounded) Write(data []byte) (int, error) {
	n := int64(len(data))
	if n > b.left {
		return 0, errors.New("it is larger than its part of what is kept; 'natkit record export' writes it")
	}
	b.left -= n
	*b.has += n
	if err := b.k.makeRoom(*b.has); err != nil {
		return 0, err
	}
	return b.out.Write(data)
}

// keptName has the time of the trigger first, so that names are in the order of time.
func keptName(p pending) string {
	what := cmp.Or(p.event.ID, p.event.Event)
	if p.event.ID == "" && p.event.Event == ring.EventTrigger {
		what = "when"
	}
	return p.at.Wall.UTC().Format(keptTime) + "-" + what
}

// makeRoom removes the oldest of what was kept, so that one more is within the bounds of their number, and of their size.
func (k *keeper) makeRoom(bytes int64) error {
	if bytes > k.Most { // nothing is removed for what does not fit
		return fmt.Errorf("they have %d bytes, and what is kept at most %d; raise --ring", bytes, k.Most)
	}
	base := filepath.Join(k.Dir, keptDir)
	entries, err := os.ReadDir(base)
	if err != nil {
		return err
	}
	type one struct {
		path string
		size int64
	}
	var all []one
	total := bytes
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") {
			o := one{filepath.Join(base, e.Name()), sizeOf(filepath.Join(base, e.Name()))}
			all = append(all, o)
			total += o.size
		}
	}
	slices.SortFunc(all, func(a, b one) int { return cmp.Compare(a.path, b.path) })
	for len(all) > 0 && (len(all) >= k.Keep || total > k.Most) {
		if err := os.RemoveAll(all[0].path); err != nil {
			return err
		}
		total -= all[0].size
		all = all[1:]
	}
	return nil
}
