package collect

import (
	"encoding/json"
	"fmt"

	"github.com/natkit/natkit/internal/natrules"
	"github.com/natkit/natkit/internal/snapshot"
)

// natRulesName is the rules as they were understood: what the kernel answers with
// is of three kinds, and has a machine's byte order in it.
const natRulesName = "nat_rules.json"

const askedNATRules = "NAT rules"

func (l *live) natRules() (*snapshot.NATRules, error) { return natrules.Read(l.o.Netns) }

func (r *recorder) natRules() (*snapshot.NATRules, error) {
	rules, err := r.source.natRules()
	if err == nil {
		err = r.addNATRules(rules)
	}
	if err != nil {
		return nil, r.failed(askedNATRules, err)
	}
	return rules, nil
}

// addNATRules refuses what no bundle has room for, which does not spoil the rest.
func (r *recorder) addNATRules(rules *snapshot.NATRules) error {
	data, err := json.Marshal(rules)
	if err != nil {
		return fmt.Errorf("write NAT rules: %w", err)
	}
	if len(data) > snapshot.MemberMax {
		return fmt.Errorf("write NAT rules: %d rules take %d bytes, more than fit into a bundle", len(rules.Rules), len(data))
	}
	r.add(natRulesName, data)
	return nil
}

// natRules are not in bundles of a natkit that did not read them.
func (t *tape) natRules() (*snapshot.NATRules, error) {
	if err := t.failure(askedNATRules); err != nil {
		return nil, err
	}
	data, ok := t.files[natRulesName]
	if !ok {
		return nil, errNotRecorded{askedNATRules}
	}
	rules := &snapshot.NATRules{}
	if err := t.parse(natRulesName, data, rules); err != nil {
		return nil, err
	}
	return rules, nil
}
