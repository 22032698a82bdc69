package cli

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/natkit/natkit/internal/diagnose"
	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/fleet"
	"github.com/natkit/natkit/internal/report"
	"github.com/natkit/natkit/internal/snapshot"
)

// nodes are the recordings of several hosts, and what else was found beside them.
type nodes struct {
	sources []nodeSource
	lists   []fleet.List
	unread  []fleet.Failure
	others  int
}

// nodeSource is one recording; size is that of its file.
type nodeSource struct {
	name string
	size int64
}

// findNodes returns the recordings that the names lead to; nil where they are one recording, or what other programs printed
// on one host. A directory is searched for bundles, recordings of 'natkit record' and a collector's list.
func findNodes(ctx context.Context, names []string) (*nodes, error) {
	var all nodes
	for _, name := range names {
		found, err := searched(ctx, name)
		if err != nil {
			return nil, err
		}
		switch {
		case found != nil:
			all.sources = append(all.sources, found.sources...)
			all.lists = append(all.lists, found.lists...)
			all.unread = append(all.unread, found.unread...)
			all.others += found.others
		case len(names) == 1:
			return nil, nil
		case name == "-":
			return nil, usagef("--from -: standard input is one recording; it cannot be read beside others")
		default:
			s := nodeSource{name: name}
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
				s.size = info.Size()
			}
			all.sources = append(all.sources, s)
		}
	}
	return &all, nil
}

// searched returns what is in a directory with bundles, recordings or a collector's list; nil for anything else.
func searched(ctx context.Context, name string) (*nodes, error) {
	if info, err := os.Stat(name); name == "-" || err != nil || !info.IsDir() || isRecording(name) {
		return nil, nil // who reads it says what is wrong with it
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if mayWalk(root) != nil {
		return nil, nil
	}
	var found nodes
	files := 0
	err = fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		full := filepath.Join(name, path)
		if files++; files > fleetFiles {
			return fmt.Errorf("read %s: it has more than %d files: give the directory with the recordings alone", name, fleetFiles)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			found.unread = append(found.unread, fleet.Failure{Source: full, Why: said(plainCause(err))})
			return nil
		case d.IsDir() && path != "." && isRing(full):
			found.sources = append(found.sources, nodeSource{name: full})
			return fs.SkipDir
		case d.IsDir():
			if kind, _ := kernelFS(root, path); kind != "" {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			found.add(root, path, full)
		case d.Type()&fs.ModeSymlink != 0 && strings.HasSuffix(path, bundleEnding):
			found.unread = append(found.unread, fleet.Failure{Source: full, Why: "it is a symbolic link, and links in a directory are not followed"})
		default:
			found.others++
		}
		return nil
	})
	if len(found.sources)+len(found.lists) == 0 {
		return nil, err
	}
	return &found, err
}

// fleetFiles bounds what a directory with recordings of many nodes has.
const fleetFiles = 500_000

// add adds a file of a directory, by how it begins.
func (n *nodes) add(root *os.Root, path, full string) {
	f, err := disk.OpenIn(root, path)
	if err != nil {
		n.unread = append(n.unread, fleet.Failure{Source: full, Why: said(plainCause(err))})
		return
	}
	defer f.Close()
	if filepath.Base(path) == fleet.ListName {
		list, err := fleet.ParseList(filepath.Dir(full), f)
		if err != nil {
			n.unread = append(n.unread, fleet.Failure{Source: full, Why: said(err)})
		}
		n.lists = append(n.lists, list)
		return
	}
	head := make([]byte, headSize)
	read, err := io.ReadFull(f, head)
	head = head[:read]
	size := int64(read)
	if info, err := f.Stat(); err == nil {
		size = info.Size()
	}
	switch why := cutOff(path, head, size); {
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		n.unread = append(n.unread, fleet.Failure{Source: full, Why: said(plainCause(err))})
	case snapshot.IsBundle(head):
		n.sources = append(n.sources, nodeSource{full, size})
	case why != "":
		n.unread = append(n.unread, fleet.Failure{Source: full, Why: why})
	default:
		n.others++
	}
}

const bundleEnding = ".tar.gz"

// cutOff is why a file that has the name of a bundle is none: it is empty, or ends or is damaged before it says what it is.
func cutOff(name string, head []byte, size int64) string {
	if !strings.HasSuffix(name, bundleEnding) {
		return ""
	}
	if size == 0 {
		return "the file is empty; 'natkit snapshot' writes one"
	}
	z, err := gzip.NewReader(bytes.NewReader(head))
	if err == nil {
		_, err = io.ReadFull(z, make([]byte, 512)) // the first header of an archive
	}
	switch {
	case err == nil:
		return ""
	case size <= int64(len(head)) && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF)):
		return "the file is truncated before its first member"
	case !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF):
		return "the file is damaged: it is no archive of gzip"
	}
	return ""
}

// runFleet diagnoses the recordings of several hosts, and compares the reports.
func (d *doctorVerb) runFleet(ctx context.Context, n *nodes) error {
	if d.of != "" {
		return usagef("--of selects a host of one input, and there are %d", len(n.sources))
	}
	if d.table != nil && d.tables.node != "" {
		return usagef("--node names one node, and there are recordings of %d: leave it out for the names that these have", len(n.sources))
	}
	toStdout, err := d.pages.check(d.env)
	if err != nil {
		return err
	}
	in := fleet.Input{Lists: n.lists, OtherFiles: n.others, Unread: n.unread, Titles: map[string]string{}, Now: time.Now()}
	for _, rule := range diagnose.Rules() {
		in.Titles[rule.ID] = rule.Title
	}
	read, failed, err := d.readNodes(ctx, n.sources)
	if err != nil {
		return err
	}
	in.Nodes, in.Unread = read, append(in.Unread, failed...)
	r := fleet.Compare(in)
	if err := d.pages.save(d.env, r); err != nil {
		return err
	}
	if d.table != nil {
		if err := d.table.addNodes(read); err != nil {
			return err
		}
	}
	if toStdout || d.table != nil {
		return fleetVerdict(ctx, r)
	}
	if err := d.env.print(report.Fleet{Report: r, Whole: d.env.verbose}); err != nil {
		return err
	}
	return fleetVerdict(ctx, r)
}

// fleetVerdict is verdict for many nodes.
func fleetVerdict(ctx context.Context, r *fleet.Report) error {
	switch {
	case ctx.Err() != nil:
		return errCutShort
	case r.Critical+r.Warnings > 0:
		return errFindings
	case r.Unfinished():
		return errIncomplete
	}
	return nil
}

const (
	// largeFile is the size from which on a recording is read while no other is.
	largeFile = 4 << 20
	// fleetMemory is what natkit may take for many recordings before garbage is collected more often.
	fleetMemory = 320 << 20
)

// readNodes diagnoses recordings, as many at a time as there are CPUs. One that cannot be read ends nothing; the last
// ones are missing where ctx ends.
func (d *doctorVerb) readNodes(ctx context.Context, sources []nodeSource) (read []*fleet.Node, failed []fleet.Failure, err error) {
	debug.SetGCPercent(400) // until that much memory is taken
	debug.SetMemoryLimit(fleetMemory)
	quiet := *d.env
	quiet.quiet = true
	progress := d.env.progress()
	defer progress.Clear()
	done := make([]*fleet.Node, len(sources))
	errs := make([]error, len(sources))
	var alone sync.RWMutex
	var finished sync.WaitGroup
	work := make(chan int)
	count := 0
	var counting sync.Mutex
	for range min(runtime.GOMAXPROCS(0), len(sources)) {
		finished.Go(func() {
			for i := range work {
				lock, unlock := alone.RLock, alone.RUnlock
				if sources[i].size >= largeFile {
					lock, unlock = alone.Lock, alone.Unlock
				}
				lock()
				done[i], errs[i] = d.readNode(ctx, &quiet, sources[i].name)
				unlock()
				counting.Lock()
				count++
				progress.Update("diagnosed %d of %d recordings", count, len(sources))
				counting.Unlock()
			}
		})
	}
	for i := range sources {
		if ctx.Err() != nil {
			break
		}
		work <- i
	}
	close(work)
	finished.Wait()
	for i, n := range done {
		var wrong usageError
		switch err := errs[i]; {
		case errors.As(err, &wrong) && !wrong.ofFile: // of the command line, not of the file
			return nil, nil, err
		case err != nil && ctx.Err() == nil:
			failed = append(failed, fleet.Failure{Source: sources[i].name, Why: withoutName(err, sources[i].name)})
		case n != nil:
			read = append(read, n)
		}
	}
	return read, failed, nil
}

// withoutName is an error without the name of the file, which stands beside it.
func withoutName(err error, name string) string {
	text := strings.ReplaceAll(said(err), "\n", "; ")
	for _, before := range []string{"read bundle " + name + ": ", "read " + name + ": ", "read the recording in " + name + ": "} {
		text = strings.TrimPrefix(text, before)
	}
	return text
}

// readNode diagnoses the recordings of one host.
func (d *doctorVerb) readNode(ctx context.Context, env *Env, name string) (*fleet.Node, error) {
	n := fleet.NewNode(name)
	var at moment
	if isRing(name) {
		at = d.at
	}
	err := env.eachRecorded(ctx, recorded{name: name, at: at, memory: int64(d.memory) << 20}, func(rec *snapshot.Recording) error {
		rec.Last().Names, rec.First().Names = nil, nil // of each host others
		r := diagnose.Run(rec, diagnose.Rules())
		r.Owner = rec.Owner
		n.Add(rec, &r)
		if d.table != nil {
			d.table.keep(n, &r)
		}
		return nil
	})
	if damage := (*snapshot.DamageError)(nil); errors.As(err, &damage) && len(n.Netns) > 0 {
		n.Lost = append(n.Lost, damage.Error())
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	return n, nil
}

// sourceNames are those of --from and of the arguments behind it, each once.
func sourceNames(from, args []string) []string {
	var names []string
	for _, name := range slices.Concat(from, args) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// fleetPages are the pages that a comparison is written to.
func fleetPages() outFiles[*fleet.Report] {
	return outFiles[*fleet.Report]{{flag: "html", usage: "with --from and several nodes: write one self-contained page to `FILE`", write: func(r *fleet.Report, w io.Writer) error {
		return report.FleetHTML(w, r)
	}}}
}

// oneRecording is the error of --html without nodes to compare.
func oneRecording(name string) error {
	return usagef("--html: %s is of one node; it compares several", fmt.Sprintf("%.200s", name))
}
