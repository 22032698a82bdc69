package conntrack

import (
	"cmp"
	"encoding/binary"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/natkit/natkit/internal/conntrack/tally"
	"github.com/natkit/natkit/internal/snapshot"
)

// top counts how often each key comes, in bounded memory: exactly up to some 65,000
// keys of any kind. With n additions of more keys a count is too low by at most n/65,000
// or so, and never too high, as nothing must be found that is not there: what the tally
// says a key came at least.
type top[K comparable] struct {
	form  form[K]
	table *tally.Table
	key   []byte
}

// topMemory has room for 65,000 keys of the longest kind.
const topMemory = 3 << 20

// form is how a key is written in so many bytes.
type form[K comparable] struct {
	width int
	put   func([]byte, K) []byte
	get   func([]byte) K
}

var (
	addrForm    = form[netip.Addr]{16, putAddr, getAddr}
	askerForm   = form[asker]{16 + 1, putAsker, getAsker}
	serviceForm = form[service]{16 + 2 + 1, putService, getService}
)

func newTop[K comparable](f form[K]) *top[K] {
	// The seed changes no result; nobody can choose addresses that collide.
	seed := maphash.Bytes(maphash.MakeSeed(), nil)
	return &top[K]{form: f, table: tally.New(f.width, seed, tally.NewBudget(topMemory), 0)}
}

func (t *top[K]) add(k K) {
	t.key = t.form.put(t.key[:0], k)
	t.table.Add(t.key)
}

// count is how often a key came at least.
func (t *top[K]) count(k K) int64 {
	r, ok := t.table.Get(t.form.put(nil, k))
	if !ok {
		return 0
	}
	return int64(r.Count - r.Excess)
}

// counted is a key and how often it came.
type counted[K comparable] struct {
	key K
	n   int64
}

// largest are the n keys with the most additions; equals by name.
func (t *top[K]) largest(n int, name func(K) string) []counted[K] {
	var all []counted[K]
	for _, number := range t.table.Top(n, 1) {
		r := t.table.Row(number)
		all = append(all, counted[K]{t.form.get(r.Key), int64(r.Count - r.Excess)})
	}
	slices.SortFunc(all, func(a, b counted[K]) int {
		return cmp.Or(cmp.Compare(b.n, a.n), cmp.Compare(name(a.key), name(b.key)))
	})
	return all
}

// talkers are the n keys with the most additions; equals by name.
func (t *top[K]) talkers(n int, name func(K) string) []snapshot.Talker {
	out := make([]snapshot.Talker, 0, n)
	for _, c := range t.largest(n, name) {
		out = append(out, snapshot.Talker{Who: name(c.key), Entries: c.n})
	}
	return out
}

func putAddr(b []byte, a netip.Addr) []byte {
	raw := a.As16()
	return append(b, raw[:]...)
}

func getAddr(b []byte) netip.Addr { return netip.AddrFrom16([16]byte(b)).Unmap() }

func putAsker(b []byte, a asker) []byte { return append(putAddr(b, a.addr), a.proto) }

func getAsker(b []byte) asker { return asker{getAddr(b[:16]), b[16]} }

func putService(b []byte, s service) []byte {
	return append(binary.BigEndian.AppendUint16(putAddr(b, s.addr), s.port), s.proto)
}

func getService(b []byte) service {
	return service{getAddr(b[:16]), binary.BigEndian.Uint16(b[16:]), b[18]}
}
