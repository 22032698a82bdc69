package engine

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/gateway"
	"github.com/natkit/natkit/internal/gateway/health"
	"github.com/natkit/natkit/internal/gateway/pcp"
	"github.com/natkit/natkit/internal/nat"
	"github.com/natkit/natkit/internal/netns"
	"github.com/natkit/natkit/internal/permit"
	"github.com/natkit/natkit/internal/tune"
	"github.com/natkit/natkit/internal/tune/apply"
	"github.com/natkit/natkit/internal/tune/journal"
	"golang.org/x/sys/unix"
)

const (
	planSuffix = ".json"
	textSuffix = ".yaml"
	setSuffix  = ".set"
	sealPrefix = "seal-"
	procRoot   = "/proc"
	// maxBytes bounds what is read of one file: a plan of 10,000 rules has some 3 MB.
	maxBytes = 256 << 20
)

// Store keeps gateway plans and configuration texts on disk under the digest of their
// content, so that an undo, the guard process and a natkit after a crash find what was in
// force. It is a directory that only its owner may write to: what it holds is put in
// force as root. It may be a sticky one of a group, as a journal may: the digest by which a
// transaction names a plan or text is all that has to be trusted.
type Store struct{ dir string }

// StoreAt uses a directory, which Put creates where it is missing. The path must be
// absolute, as the guard process runs in another working directory.
func StoreAt(dir string) *Store { return &Store{dir} }

// StoreBeside is the store that belongs to a journal's directory.
func StoreBeside(journal string) *Store {
	return StoreAt(filepath.Join(filepath.Dir(journal), "gateway"))
}

// Dir is where it lies.
func (s *Store) Dir() string { return s.dir }

// Put writes a plan in the form that gateway.Digest is of, unless it is there, and
// returns its digest. It is on disk when Put returns.
func (s *Store) Put(p *gateway.Plan) (digest string, err error) {
	text, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("store gateway plan: %w", err)
	}
	for _, set := range p.Sets {
		if err := s.put(set.Digest()+setSuffix, set.Text()); err != nil {
			return "", err
		}
	}
	digest = TextDigest(text)
	return digest, s.put(digest+planSuffix, text)
}

// Get reads a plan. Where it is not there the error is fs.ErrNotExist.
func (s *Store) Get(digest string) (*gateway.Plan, error) {
	text, err := s.read("gateway plan", digest, planSuffix)
	if err != nil {
		return nil, err
	}
	p := &gateway.Plan{}
	if err := json.Unmarshal(text, p); err != nil {
		return nil, fmt.Errorf("read gateway plan %s: %w", s.path(digest+planSuffix), err)
	}
	if p.Schema != gateway.PlanSchema {
		return nil, fmt.Errorf("read gateway plan %s: schema %q, expected %q: another version of natkit wrote it", s.path(digest+planSuffix), p.Schema, gateway.PlanSchema)
	}
	err = p.Link(func(digest string) ([]byte, error) { return s.read("set of a gateway plan", digest, setSuffix) })
	if err != nil {
		return nil, fmt.Errorf("read gateway plan %s: %w", s.path(digest+planSuffix), err)
	}
	return p, nil
}

// Plan is Get; nil where it fails.
func (s *Store) Plan(digest string) *gateway.Plan {
	p, err := s.Get(digest)
	if err != nil {
		return nil
	}
	return p
}

// maxState bounds what is read of a seal, a line for each set of an engine's rules, and of the states of hosts.
const maxState = 16 << 20

func (s *Store) sealPath(inode uint64, e gateway.Engine) string {
	return s.path(fmt.Sprintf("%s%d-%s", sealPrefix, inode, e))
}

// PutSeal keeps how the rules are that an engine has in force in the network namespace of
// an inode; an empty seal takes away the one that is kept.
func (s *Store) PutSeal(inode uint64, e gateway.Engine, seal string) error {
	return s.putState(s.sealPath(inode, e), []byte(seal))
}

// putState replaces a file of what is in force; an empty text takes it away.
func (s *Store) putState(path string, text []byte) error {
	if err := permit.File(path); err != nil {
		return err
	}
	if len(text) == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", path, journal.Hint(err))
		}
		return nil
	}
	if err := s.create(); err != nil {
		return err
	}
	if err := disk.Replace(path, 0o640, disk.Text(text)); err != nil {
		return fmt.Errorf("write %s: %w", path, journal.Hint(err))
	}
	return nil
}

// Seal returns what PutSeal kept last; empty for nothing, and where it cannot be read or
// others could have written it.
func (s *Store) Seal(inode uint64, e gateway.Engine) string {
	if s == nil {
		return ""
	}
	return string(s.state(s.sealPath(inode, e)))
}

func (s *Store) state(path string) []byte {
	if disk.Trust(s.dir) != nil {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxState))
	if err != nil {
		return nil
	}
	return text
}

// PutHealth keeps the states of checked hosts of a network namespace; an empty text takes away what is kept.
func (s *Store) PutHealth(ns netns.ID, text []byte) error {
	return s.putOwned(s.healthPath(ns.Inode), ns, text)
}

// Health returns what PutHealth kept last; nil for nothing, and where it cannot be read or others could have written it.
func (s *Store) Health(ns netns.ID) []byte {
	if s == nil {
		return nil
	}
	return s.owned(s.healthPath(ns.Inode), ns)
}

// PutLeases keeps the state of PCP of a network namespace; an empty text takes away what is kept.
func (s *Store) PutLeases(ns netns.ID, text []byte) error {
	return s.putOwned(s.leasesPath(ns.Inode), ns, text)
}

// PCP returns what PutLeases kept last; nil for nothing, and where it cannot be read or others could have written it.
func (s *Store) PCP(ns netns.ID) *pcp.State {
	if s == nil {
		return nil
	}
	return pcp.ParseState(s.owned(s.leasesPath(ns.Inode), ns))
}

// Leases are those of what PutLeases kept last that have not expired.
func (s *Store) Leases(inode, cookie uint64) []gateway.Lease {
	return s.PCP(netns.ID{Inode: inode, Cookie: cookie}).Left(time.Now())
}

// owner is the form of the first line of a state: whose it is, as the inode of a network namespace is given to another one
// as soon as that is gone.
const owner = "boot %s netns %d"

// putOwned is putState of what is a network namespace's alone.
func (s *Store) putOwned(path string, ns netns.ID, text []byte) error {
	if len(text) == 0 {
		return s.putState(path, nil)
	}
	boot, err := journal.ReadBootID(procRoot)
	if err != nil {
		return err
	}
	return s.putState(path, append(fmt.Appendf(nil, owner+"\n", boot, ns.Cookie), text...))
}

// owned is what putOwned kept of the same network namespace; nil where it was another's. Of those of a former boot only
// the host's own is the same.
func (s *Store) owned(path string, ns netns.ID) []byte {
	line, text, _ := bytes.Cut(s.state(path), []byte("\n"))
	var boot string
	was := netns.ID{Inode: ns.Inode}
	if n, _ := fmt.Sscanf(string(line), owner, &boot, &was.Cookie); n != 2 {
		return nil
	}
	now, err := journal.ReadBootID(procRoot)
	if err != nil || now == boot && !was.Is(ns) || now != boot && !apply.IsInitialNetns(ns.Inode, procRoot) {
		return nil
	}
	return text
}

func (s *Store) leasesPath(inode uint64) string { return s.path(fmt.Sprintf("leases-%d", inode)) }

func (s *Store) healthPath(inode uint64) string { return s.path(fmt.Sprintf("health-%d", inode)) }

// Down are the uplinks through which nothing answers in a network namespace, and why; none where no process
// keeps a gateway in force there, which would look whether that still is so.
func (s *Store) Down(ns netns.ID) map[string]string {
	if s == nil || s.Claimant(ns.Inode) == "" {
		return nil
	}
	return health.ParseReport(s.Health(ns)).Down()
}

// PutText writes a configuration's text, and returns its digest.
func (s *Store) PutText(text []byte) (digest string, err error) {
	digest = TextDigest(text)
	return digest, s.put(digest+textSuffix, text)
}

// Text reads a configuration's text. Where it is not there the error is
// fs.ErrNotExist.
func (s *Store) Text(digest string) ([]byte, error) {
	return s.read("gateway configuration", digest, textSuffix)
}

// TextDigest is the digest by which a text is kept.
func TextDigest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) put(name string, text []byte) error {
	if err := s.create(); err != nil {
		return err
	}
	path := s.path(name)
	if old, err := s.read("", strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)); err == nil && bytes.Equal(old, text) && renew(path) {
		return nil
	}
	if err := disk.Replace(path, 0o640, disk.Text(text)); err != nil {
		return fmt.Errorf("write %s: %w", path, journal.Hint(err))
	}
	return nil
}

// renew makes a file as new: Collect leaves it for who put it. Another user's is
// replaced, who could take it away; root's cannot be, and stays.
func renew(path string) bool {
	st, err := os.Lstat(path)
	if err != nil {
		return false
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	if owner != os.Geteuid() {
		return owner == 0
	}
	now := time.Now()
	return os.Chtimes(path, now, now) == nil
}

// read reads a file and refuses what others could have put there.
func (s *Store) read(what, digest, suffix string) ([]byte, error) {
	if !tune.IsDigest(digest) {
		return nil, fmt.Errorf("read %s %q: not a digest", what, digest)
	}
	if err := disk.Trust(s.dir); err != nil {
		return nil, fmt.Errorf("read %s %s: %w", what, digest, journal.Hint(err))
	}
	f, err := os.OpenFile(s.path(digest+suffix), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s %s: %w in %s", what, digest, fs.ErrNotExist, s.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", what, journal.Hint(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("larger than %d bytes", maxBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s %s: %w", what, f.Name(), err)
	}
	if got := TextDigest(text); got != digest {
		return nil, fmt.Errorf("read %s %s: it was damaged: its digest is %s", what, f.Name(), got)
	}
	return text, nil
}

func (s *Store) create() error {
	if err := permit.File(s.dir); err != nil {
		return err
	}
	if err := disk.MakeTrusted(s.dir); err != nil {
		return fmt.Errorf("open gateway store %w", journal.Hint(err))
	}
	return nil
}

// Claim makes this process the one that keeps a gateway in force in the network
// namespace of an inode, until release or its end. who says what it is, in one line; of
// another one that has the claim the error is Claimed.
func (s *Store) Claim(inode uint64, who string) (release func(), err error) {
	if err := s.create(); err != nil {
		return nil, err
	}
	path := s.claimPath(inode)
	f, err := disk.TryLock(path)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		defer f.Close()
		return nil, Claimed(lineOf(f))
	case err == nil:
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = f.WriteAt([]byte(who+"\n"), 0)
	}
	if err != nil {
		f.Close() // also where it is nil
		return nil, fmt.Errorf("claim the gateway by %s: %w", path, journal.Hint(err))
	}
	return func() { os.Remove(path); f.Close() }, nil
}

// Claimed says who keeps a gateway in force.
type Claimed string

func (c Claimed) Error() string {
	return fmt.Sprintf("%s keeps a gateway in force in this network namespace", string(c))
}

// Claimant is who keeps a gateway in force in the namespace; empty if no process does,
// or where that cannot be seen.
func (s *Store) Claimant(inode uint64) string {
	f, err := os.OpenFile(s.claimPath(inode), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || err != nil {
		return ""
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
		return ""
	}
	return lineOf(f)
}

func (s *Store) claimPath(inode uint64) string { return s.path(fmt.Sprintf("run-%d.lock", inode)) }

// lineOf is the first line of a file, no longer than a terminal's.
func lineOf(f *os.File) string {
	text, _ := io.ReadAll(io.LimitReader(f, 200))
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, line)
}

// Collect deletes what was stored before a moment and is not referenced any more. The
// journal's lock must be held, so that no new reference appears.
func (s *Store) Collect(before time.Time, used func(digest string) bool) (deleted int, err error) {
	if err := permit.File(s.dir); err != nil {
		return 0, err
	}
	names, err := s.names()
	if err != nil || len(names) == 0 {
		return 0, err
	}
	s.collectSeals(before)
	for _, name := range names {
		st, err := os.Lstat(s.path(name))
		if digest, _ := digestOf(name); err != nil || !st.ModTime().Before(before) || used(digest) {
			continue
		}
		if err := os.Remove(s.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return deleted, fmt.Errorf("clean gateway store: %w", journal.Hint(err))
		}
		deleted++
	}
	s.collectSets(before)
	return deleted, nil
}

// collectSets deletes the sets that no plan has any more.
func (s *Store) collectSets(before time.Time) {
	paths, _ := filepath.Glob(s.path("*" + setSuffix))
	paths = slices.DeleteFunc(paths, func(path string) bool {
		st, err := os.Lstat(path)
		return err != nil || !st.ModTime().Before(before)
	})
	if len(paths) == 0 {
		return
	}
	used := map[string]bool{}
	plans, _ := filepath.Glob(s.path("*" + planSuffix))
	for _, path := range plans {
		var p struct {
			Sets []*nat.Set `json:"sets"`
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = json.Unmarshal(text, &p)
		}
		if err != nil {
			return // it may need them
		}
		for _, set := range p.Sets {
			used[set.Digest()+setSuffix] = true
		}
	}
	for _, path := range paths {
		if !used[filepath.Base(path)] {
			os.Remove(path)
		}
	}
}

// collectSeals deletes states of hosts and leases that no service has, and seals of network namespaces that nothing was put in force in since
// that moment, where their plans are not kept any more.
func (s *Store) collectSeals(before time.Time) {
	for _, kind := range []string{"health", "leases"} {
		states, _ := filepath.Glob(s.path(kind + "-*"))
		for _, path := range states {
			var inode uint64
			_, err := fmt.Sscanf(filepath.Base(path), kind+"-%d", &inode)
			if st, e := os.Lstat(path); err == nil && e == nil && st.ModTime().Before(before) && s.Claimant(inode) == "" && (kind == "health" || !s.leasesLeft(path)) {
				os.Remove(path)
			}
		}
	}
	paths, _ := filepath.Glob(s.path(sealPrefix + "*"))
	for _, path := range paths {
		st, err := os.Lstat(path)
		if err != nil || !st.ModTime().Before(before) {
			continue
		}
		text, err := os.ReadFile(path)
		digest, _, _ := strings.Cut(string(text), "\n")
		if _, missing := os.Lstat(s.path(digest + planSuffix)); err == nil && errors.Is(missing, fs.ErrNotExist) {
			os.Remove(path)
		}
	}
}

// leasesLeft reports whether a state of PCP has leases that have not expired, whosever it is.
func (s *Store) leasesLeft(path string) bool {
	_, text, _ := bytes.Cut(s.state(path), []byte("\n"))
	return len(pcp.ParseState(text).Left(time.Now())) > 0
}

// names are those of the store's own files; a missing store is empty.
func (s *Store) names() ([]string, error) {
	err := disk.Trust(s.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open gateway store %w", journal.Hint(err))
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read gateway store: %w", journal.Hint(err))
	}
	var names []string
	for _, e := range entries {
		if _, ok := digestOf(e.Name()); ok {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

func digestOf(name string) (digest string, ok bool) {
	digest, isPlan := strings.CutSuffix(name, planSuffix)
	if !isPlan {
		digest, ok = strings.CutSuffix(name, textSuffix)
		if !ok {
			return "", false
		}
	}
	return digest, tune.IsDigest(digest)
}
