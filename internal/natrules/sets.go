package natrules

import (
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/conntrack"
)

// newSet stands for an anonymous set in a rule that takes another's place: such a
// set belongs to one rule (nf_tables_bind_set: EBUSY), so that the new one needs a
// copy, as nft makes one.
type newSet struct {
	id      uint32
	name    string // what the kernel makes a name of: "__set%d"
	message []byte // of NFT_MSG_NEWSET
	// elements are of NFT_MSG_NEWSETELEM, for each message that the kernel told them in.
	elements [][]byte
}

const (
	setTable, setName, setFlagBits, setID, setHandle = 1, 2, 3, 10, 16
	setAnonymous                                     = 1 // NFT_SET_ANONYMOUS
	setType, setCount                                = 19, 20
	elemListSetID                                    = 4
	lookupSetID                                      = 4
)

// lookup is a lookup's data, in the new set.
func (s newSet) lookup(a attrs) []byte {
	return appendU32(replaceAttr(a, nftLookupSet, append([]byte(s.name), 0)), lookupSetID, s.id)
}

// copySets prepares copies of the anonymous sets that a rule looks into, by name.
func (c conn) copySets(r *kernelRule) (map[string]newSet, error) {
	sets := map[string]newSet{}
	for _, x := range r.exprs {
		name := x.data.text(nftLookupSet)
		if x.name != "lookup" || sets[name].id != 0 {
			continue
		}
		s, err := c.copySet(tableKey{r.family, r.table}, name)
		if err != nil {
			return nil, fmt.Errorf("copy set %s of table %s: %w", name, r.table, err)
		}
		if s != nil {
			s.id = uint32(len(sets) + 1)
			s.message = appendU32(s.message, setID, s.id)
			sets[name] = *s
		}
	}
	return sets, nil
}

// copySet is nil for a set that has a name of its own, which rules share.
func (c conn) copySet(t tableKey, name string) (*newSet, error) {
	request := appendText(appendText(nil, setTable, t.name), setName, name)
	answers, err := c.ask(unix.NFT_MSG_GETSET, t.family, 0, request)
	if err != nil {
		return nil, err
	}
	if len(answers) == 0 {
		return nil, unix.ENOENT
	}
	_, a, err := body(answers[0].Data)
	if err != nil || a.u32(setFlagBits)&setAnonymous == 0 {
		return nil, err
	}
	s := &newSet{name: strings.TrimRight(name, "0123456789") + "%d"}
	for _, x := range a {
		switch x.kind {
		case setName:
			s.message = appendText(s.message, setName, s.name)
		case setID, setHandle, setType, setCount:
		default:
			s.message = append(s.message, x.raw...)
		}
	}
	s.elements, err = c.copyElements(t, name)
	return s, err
}

func (c conn) copyElements(t tableKey, name string) ([][]byte, error) {
	request := appendText(appendText(nil, nftSetElemListTable, t.name), nftSetElemListSet, name)
	answers, err := c.ask(unix.NFT_MSG_GETSETELEM, t.family, netlink.Dump, request)
	if err != nil {
		return nil, err
	}
	var all [][]byte
	for _, m := range answers {
		_, a, err := body(m.Data)
		if err != nil {
			return nil, err
		}
		all = append(all, a.get(nftSetElemListElems))
	}
	return all, nil
}

// messages make the set in a transaction, before the rule.
func (s newSet) messages(t tableKey) []message {
	all := []message{{unix.NFT_MSG_NEWSET, t.family, netlink.Create, s.message}}
	for _, elements := range s.elements {
		b := appendText(appendText(nil, nftSetElemListTable, t.name), nftSetElemListSet, s.name)
		b = appendU32(b, elemListSetID, s.id)
		b = appendAttr(b, nftSetElemListElems|nlaNested, elements)
		all = append(all, message{unix.NFT_MSG_NEWSETELEM, t.family, netlink.Create, b})
	}
	return all
}

// protocols are those that a rule is for; none where it is for all, or where they
// cannot be told.
func (c conn) protocols(t tableKey, r *kernelRule) ([]string, error) {
	m := machine{family: familyNames[t.family], verdicts: func(string) []string { return nil }}
	switch s := m.readStep(r); {
	case s.rule.Protocol != "":
		return []string{s.rule.Protocol}, nil
	case s.protocols == "":
		return nil, nil
	default:
		lists, err := c.copyElements(t, s.protocols)
		return protocolsOf(lists), err
	}
}

// protocolsOf are the elements of a set of protocols; none where one is an interval.
func protocolsOf(lists [][]byte) []string {
	var names []string
	for _, list := range lists {
		elems, _ := parseAttrs(list)
		for _, elem := range elems {
			e, _ := parseAttrs(elem.data)
			key := e.nested(nftSetElemKey).get(nftDataValue)
			if len(key) == 0 || e.u32(nftSetElemFlags) != 0 {
				return nil
			}
			names = append(names, conntrack.ProtocolName(key[0]))
		}
	}
	return names
}
