package nft

import (
	"fmt"
	"sync"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/netns"
)

// State is natkit's table as the kernel has it.
type State struct {
	// Present is false where there is no table; the rest is then empty.
	Present bool
	// Generation is that of the namespace's whole rule set: it grows with each
	// transaction, also of other programs.
	Generation uint32
	// Digest is that of the plan that the writer left; empty where the mark is gone.
	Digest string
	// Fingerprint is a hash over all that the kernel tells of the table without what
	// packets, time and handles change.
	Fingerprint string
	// Sealed tells that the writer left a fingerprint of each object, Intact that they
	// are what the kernel tells now. Without a seal nobody knows whether it is intact.
	Sealed, Intact bool
	// Changes says what is not as the writer left it: "chain prerouting: 3 rules
	// instead of 2".
	Changes []string
	// Owned: one socket alone may change the table. Dormant: somebody switched it off,
	// and it translates nothing.
	Owned, Dormant bool
	// Counts are of the rules and elements that have counters, in the table's order.
	Counts []Counted

	// changed are the objects that the last of Changes are about, comments those of
	// each object's rules or elements.
	changed  []string
	comments map[string][]string
}

// Counted is what a rule or an element of the table counted. Of NAT rules, packets are
// new connections: the first packet alone comes there.
type Counted struct {
	// Comment is the writer's: the Ref of the gateway's rule where it is of one.
	Comment        string
	Packets, Bytes uint64
}

// Family is the family of natkit's table.
const Family = natrules.GatewayFamily

// intact is the table that was read or sealed last and is as natkit wrote it: it need not
// be read again before somebody changes rules. Its Counts grow older.
var intact struct {
	sync.Mutex
	ns    netns.ID
	state State
}

// remember notes a state as intact, where it is.
func remember(ns *netns.Handle, s State) {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 || !s.Sealed || !s.Intact {
		return
	}
	intact.Lock()
	defer intact.Unlock()
	intact.ns, intact.state = id, s
}

// remembered is the state that is intact; nil where it is another namespace's, or somebody
// has changed rules since.
func remembered(ns *netns.Handle) *State {
	id, err := netns.IDOf(ns)
	if err != nil || id.Cookie == 0 {
		return nil
	}
	generation, err := natrules.Generation(ns)
	intact.Lock()
	defer intact.Unlock()
	if err != nil || !intact.ns.Is(id) || intact.state.Generation != generation {
		return nil
	}
	s := intact.state
	return &s
}

// Read tells the state of natkit's table in a namespace (nil: this one). Needs
// CAP_NET_ADMIN in that namespace.
func Read(ns *netns.Handle) (*State, error) {
	t, err := natrules.ReadTable(ns, Family, Table)
	if err != nil {
		return nil, fmt.Errorf("read the gateway's state: %w", err)
	}
	if t == nil {
		return &State{}, nil
	}
	s := &State{Present: true, Generation: t.Generation, Owned: t.Owned, Dormant: t.Dormant, Counts: counts(t)}
	s.judge(objectsOf(t), marksOf(t))
	if len(s.changed) > 0 {
		s.comments = commentsOf(t)
	}
	remember(ns, *s)
	return s, nil
}

func counts(t *natrules.Table) []Counted {
	var all []Counted
	for _, r := range t.Rules {
		if r.Counted {
			all = append(all, Counted{r.Comment, r.Packets, r.Bytes})
		}
	}
	for _, s := range t.Sets {
		for _, e := range s.Elements {
			if e.Counted && !s.Dynamic {
				all = append(all, Counted{e.Comment, e.Packets, e.Bytes})
			}
		}
	}
	return all
}
