package drops

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/natkit/natkit/internal/kallsyms"
)

// names tell what the running kernel's numbers and addresses stand for.
type names struct {
	symbols   *kallsyms.Table // nil where there are none; note then says why
	note      string
	hasReason bool
	reasons   map[uint32]string
	// Reasons up to consumed are none; purged is what a closed socket leaves.
	consumed, purged uint32
	// unspecified is the reason that says nothing.
	unspecified uint32
	harmless    [maxHarmless]dropsRange
}

func readNames() (*names, error) {
	n := &names{reasons: map[uint32]string{}}
	read := make(chan error, 1)
	go func() (err error) {
		defer func() { read <- err }()
		n.symbols, err = kallsyms.Read("/proc")
		return err
	}()
	err := n.readReasons()
	if hidden := <-read; hidden != nil {
		n.note = fmt.Sprintf("places are shown by their address: %v", hidden)
	}
	if err != nil {
		return nil, err
	}
	n.findHarmless()
	return n, nil
}

// readReasons reads the reasons of the kernel proper and of its subsystems, whose
// modules may not be there.
func (n *names) readReasons() error {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("read the kernel's types from /sys/kernel/btf/vmlinux: %w (needs CONFIG_DEBUG_INFO_BTF)", err)
	}
	if n.hasReason, err = reasonIsThird(kernel); err != nil || !n.hasReason {
		return err
	}
	reasons, err := enum(kernel, "skb_drop_reason")
	if err != nil {
		return err
	}
	for _, v := range reasons {
		name := strings.TrimPrefix(v.Name, "SKB_DROP_REASON_")
		n.reasons[uint32(v.Value)] = name
		switch name {
		case "SKB_CONSUMED":
			n.consumed = uint32(v.Value)
		case "QUEUE_PURGE": // since Linux 6.3
			n.purged = uint32(v.Value)
		case "NOT_SPECIFIED":
			n.unspecified = uint32(v.Value)
		}
	}
	n.readSubsystems(kernel)
	return nil
}

// subsystems have reasons of their own since Linux 6.4, with their number in the
// upper half (net/dropreason.h).
var subsystems = []struct{ module, enum, prefix string }{
	{"mac80211", "mac80211_drop_reason", "RX_DROP_"},
	{"mac80211", "mac80211_drop_reason", "___RX_DROP_"},
	{"openvswitch", "ovs_drop_reason", ""},
}

func (n *names) readSubsystems(kernel *btf.Spec) {
	for _, s := range subsystems {
		values, err := enum(kernel, s.enum)
		if err != nil {
			module, err := btf.LoadKernelModuleSpec(s.module)
			if err != nil {
				continue
			}
			values, _ = enum(module, s.enum)
		}
		for _, v := range values {
			if v.Value >= 1<<16 {
				n.reasons[uint32(v.Value)] = strings.TrimPrefix(v.Name, s.prefix)
			}
		}
	}
	if groups, err := enum(kernel, "skb_drop_reason_subsys"); err == nil {
		for _, v := range groups {
			if number := uint32(v.Value) << 16; number != 0 && n.reasons[number] == "" {
				n.reasons[number] = strings.TrimPrefix(v.Name, "SKB_DROP_REASON_SUBSYS_")
			}
		}
	}
}

// reason is a name, empty where the kernel has none.
func (n *names) reason(number uint32) string {
	if !n.hasReason {
		return ""
	}
	if name, ok := n.reasons[number]; ok {
		return name
	}
	if group, ok := n.reasons[number&^0xffff]; ok && number >= 1<<16 {
		return fmt.Sprintf("%s %d", group, number&0xffff)
	}
	return fmt.Sprintf("reason %d", number)
}

func enum(s *btf.Spec, name string) ([]btf.EnumValue, error) {
	var e *btf.Enum
	if err := s.TypeByName(name, &e); err != nil {
		return nil, fmt.Errorf("find enum %s in the kernel's types: %w", name, err)
	}
	return e.Values, nil
}

// reasonIsThird tells whether the tracepoint hands on a reason after skb and
// location, as it does since Linux 5.17. Its prototype begins with an argument of
// its own.
func reasonIsThird(s *btf.Spec) (bool, error) {
	var t *btf.Typedef
	if err := s.TypeByName("btf_trace_kfree_skb", &t); err != nil {
		// Before 5.5 there is no such type, and no reason either.
		if errors.Is(err, btf.ErrNotFound) {
			return false, nil
		}
		return false, fmt.Errorf("find the tracepoint skb:kfree_skb in the kernel's types: %w", err)
	}
	pointer, ok := t.Type.(*btf.Pointer)
	if !ok {
		return false, fmt.Errorf("the kernel's type %s is no pointer", t.Name)
	}
	proto, ok := pointer.Target.(*btf.FuncProto)
	if !ok || len(proto.Params) < 3 {
		return false, fmt.Errorf("the kernel's type %s is no function of an skb and a location", t.Name)
	}
	if len(proto.Params) == 3 {
		return false, nil
	}
	e, ok := btf.UnderlyingType(proto.Params[3].Type).(*btf.Enum)
	return ok && e.Name == "skb_drop_reason", nil
}

// place is the function at an address.
func (n *names) place(location uint64) kallsyms.Symbol {
	if n.symbols != nil {
		if s, ok := n.symbols.Lookup(location); ok {
			return s
		}
	}
	return kallsyms.Symbol{Name: fmt.Sprintf("%#x", location)}
}
