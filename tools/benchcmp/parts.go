package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/natkit/natkit/internal/bpf"
	"github.com/natkit/natkit/internal/bpf/plane"
	"github.com/natkit/natkit/tools/bench"
)

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -cflags "-O2 -fno-strict-aliasing -Wall -Wextra -Wno-unused-parameter -Werror -mcpu=v3" -target bpfel parts parts.bpf.c

const (
	redirectAlone = "redirect alone"
	aboveRedirect = "nanoseconds_above_redirect"
	programTime   = "program_nanoseconds"
)

// memorySlots is as many as the engine has where few CPUs may come.
const memorySlots = 1 << 16

// partsSuite measures the program of the eBPF engine at XDP with its later parts left out.
func partsSuite(natkit string) bench.Suite {
	p := &parts{planes: planes{packetRuns: packetRuns{natkit: natkit}}}
	s := p.suite(bench.Suite{
		Name: "parts", Title: "The eBPF engine at XDP, part by part",
		About: "What the parts of the engine's program at XDP cost, by leaving out those that follow:\n" +
			"each column has one part more than the one before it, and redirects. What was decided\n" +
			"for a flow is remembered; the last two columns decide for each packet instead.",
		Subjects: []bench.Subject{
			{Name: "no gateway", Run: p.runDirect},
			p.subject(redirectAlone, partsPartNONE, partsOriginMEMORY),
			p.subject("+ headers read", partsPartHEADERS, partsOriginMEMORY),
			p.subject("+ memory asked", partsPartDECISION, partsOriginMEMORY),
			p.subject("+ rewritten", partsPartREWRITE, partsOriginMEMORY),
			p.subject("+ counted", partsPartCOUNTERS, partsOriginMEMORY),
			{Name: engineXDP, Run: func(ctx context.Context) (bench.Sample, error) {
				s, err := p.runEngine(ctx, plane.XDP, partsTraffic)
				return p.above(s), err
			}},
			p.subject("mappings, no memory", partsPartCOUNTERS, partsOriginMAPPINGS),
			p.subject("mappings and routes, no memory", partsPartCOUNTERS, partsOriginROUTES),
		},
		Baseline: redirectAlone,
	})
	s.Quantities = append(s.Quantities, nanoseconds(aboveRedirect, "… above the redirect", false), nanoseconds(programTime, "the program alone", true))
	s.Method += "; the program's own time is taken in a run of its own (BPF_ENABLE_STATS, about 20 ns of it the measurement), without what sends the frame on"
	return s
}

var partsTraffic = traffic{mappings: manyMappings, flows: packetFlows}

type parts struct {
	planes
	redirect float64 // nanoseconds of a redirect alone, the last time
}

func (p *parts) subject(name string, last partsPart, origin partsOrigin) bench.Subject {
	return bench.Subject{Name: name,
		Run: func(ctx context.Context) (bench.Sample, error) {
			s, _, err := p.runPart(ctx, last, origin)
			s.GeneratorLimit = "" // the least parts show the limit of the path, generator included
			if last == partsPartNONE {
				p.redirect = s.Values[planeCost]
				return s, err
			}
			return p.above(s), err
		},
		Count: func(ctx context.Context) (_ bench.Values, err error) {
			statistics, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
			if err != nil {
				return nil, fmt.Errorf("have the kernel take the time of programs: %w", err)
			}
			defer func() { err = errors.Join(err, statistics.Close()) }()
			_, own, err := p.runPart(ctx, last, origin)
			return bench.Values{programTime: own}, err
		},
	}
}

// above adds what a run took more than a redirect alone.
func (p *parts) above(s bench.Sample) bench.Sample {
	if s.Values != nil {
		s.Values[aboveRedirect] = s.Values[planeCost] - p.redirect
	}
	return s
}

// runPart has the parts up to last translate, or as much of it as they do. own is the time in nanoseconds of the program
// alone, where the kernel takes it.
func (p *parts) runPart(ctx context.Context, last partsPart, origin partsOrigin) (s bench.Sample, own float64, err error) {
	if err := p.rules(ctx, ""); err != nil {
		return s, 0, err
	}
	program, in, err := p.loadPart(last, origin)
	if err != nil {
		return s, 0, fmt.Errorf("load the engine's program up to part %d: %w", last, err)
	}
	defer program.Close()
	var l link.Link
	err = p.gateway.Do(func() (err error) {
		l, err = link.AttachXDP(link.XDPOptions{Interface: in, Program: program, Flags: link.XDPDriverMode})
		return err
	})
	if err != nil {
		return s, 0, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	cfg := partsTraffic.config()
	if last < partsPartREWRITE {
		cfg.Expect = unchanged
	}
	if s, err = p.through(ctx, cfg, false); err != nil {
		return s, 0, err
	}
	stats, err := program.Stats()
	if err == nil && stats.RunCount > 0 {
		own = float64(stats.Runtime.Nanoseconds()) / float64(stats.RunCount)
	}
	return s, own, err
}

// loadPart loads it with the mappings as the engine has them, for the interface by which the client's packets come in.
func (p *parts) loadPart(last partsPart, origin partsOrigin) (program *ebpf.Program, in int, err error) {
	from, to, err := p.ports()
	if err != nil {
		return nil, 0, err
	}
	engine, _, err := loadEngine(p.gateway, plane.TC, partsTraffic.tables())
	if err != nil {
		return nil, 0, err
	}
	defer engine.Close()
	program, err = loadProgram(engine, map[string]any{
		partsVarLastPart: last, partsVarDecidedBy: origin, partsVarOutIfindex: uint32(to.Index),
		partsVarMacWords: append(append([]byte{}, to.NextMAC...), to.MAC...),
	})
	return program, from.Index, err
}

// loadProgram loads it with the maps of an engine. It decides about a flow once, not again from time to time.
func loadProgram(engine *plane.Programs, switches map[string]any) (*ebpf.Program, error) {
	spec, err := loadParts()
	if err != nil {
		return nil, err
	}
	maps := map[string]*ebpf.Map{
		partsMapDestinations: engine.Destinations, partsMapSources: engine.Sources,
		partsMapInterfaces: engine.Interfaces, partsMapMacs: engine.Macs, partsMapRules: engine.Rules,
	}
	for name, m := range maps {
		spec.Maps[name].MaxEntries, spec.Maps[name].Flags = m.MaxEntries(), m.Flags()
	}
	spec.Maps[partsMapDecisions].MaxEntries = memorySlots * uint32(ebpf.MustPossibleCPU())
	switches[partsVarLastSlot], switches[partsVarKeepJiffies] = uint32(memorySlots-1), uint32(1<<31)
	switches[partsVarIdentity] = partsAbout{Version: 1}
	if err := bpf.Prepare(spec, switches); err != nil {
		return nil, err
	}
	var o struct {
		Program *ebpf.Program `ebpf:"some_parts"`
	}
	err = spec.LoadAndAssign(&o, &ebpf.CollectionOptions{MapReplacements: maps})
	return o.Program, err
}
