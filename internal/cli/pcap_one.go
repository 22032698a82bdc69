package cli

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/natkit/natkit/internal/pcap"
	"github.com/natkit/natkit/internal/report"
)

// pcapDocument is the JSON form.
type pcapDocument struct {
	Schema  string `json:"schema"`
	Version string `json:"version"`
	Source  string `json:"source"`
	// Filter chose so many packets, where there was one.
	Filter string `json:"filter,omitempty"`
	Chosen int64  `json:"packets_chosen,omitempty"`
	// Interrupted says that the capture was not read to its end.
	Interrupted bool `json:"interrupted,omitempty"`
	*pcap.Report
}

// one reads one capture and tells what it holds.
func (v *pcapVerb) one(cmd *cobra.Command, name string) error {
	in, err := openCapture(cmd.Context(), v.env, name)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pcap.Read(in, pcap.Options{Memory: int64(v.memory), Incidents: v.keep, TimeWait: v.timeWait, Only: v.chosenBy(&v.passed)})
	in.progress.Clear()
	switch {
	case r == nil && in.interrupted:
		return errors.New("interrupted before the capture had begun")
	case r == nil:
		return malformed(in.failed(err))
	}
	if in.interrupted {
		r.Damage = withoutEnd(r.Damage)
	}
	v.choose(r)
	if showErr := v.show(in, r); showErr != nil {
		return showErr
	}
	if err != nil {
		return in.failed(fmt.Errorf("%w; what was read until there is told", err))
	}
	if notUnderstood(r) {
		return malformed(in.failed(errors.New("nothing in it was understood (see above), so nothing can be said of it")))
	}
	if v.faulty(r) {
		return errFindings
	}
	return nil
}

// notUnderstood reports whether there are packets, but none that natkit could read. Those
// that are not IP, such as ARP, were read.
func notUnderstood(r *pcap.Report) bool {
	var unread, other int64
	for _, u := range r.Undecoded {
		unread += u.Packets
		if u.Reason == pcap.NotIP {
			other += u.Packets
		}
	}
	return r.Packets > 0 && unread == r.Packets && other == 0
}

// withoutEnd leaves out the place where an interruption ended the file.
func withoutEnd(list []pcap.Damage) []pcap.Damage {
	if n := len(list); n > 0 && list[n-1].Ended {
		return list[:n-1]
	}
	return list
}

// choose leaves out the incidents of kinds that were not asked for.
func (v *pcapVerb) choose(r *pcap.Report) {
	if len(v.chosen) == 0 {
		return
	}
	r.Incidents = slices.DeleteFunc(r.Incidents, func(in pcap.Incident) bool { return !slices.Contains(v.chosen, in.Kind) })
	r.Kinds = slices.DeleteFunc(r.Kinds, func(k pcap.KindCount) bool { return !slices.Contains(v.chosen, k.Kind) })
}

func (v *pcapVerb) show(in *captureInput, r *pcap.Report) error {
	if v.asJSON {
		return report.JSON(v.env.Stdout, pcapDocument{Schema: pcap.Schema, Version: v.env.Version, Source: in.name,
			Filter: v.filter.String(), Chosen: v.passed, Interrupted: in.interrupted, Report: r})
	}
	view := report.PcapView{Source: in.name, Ladders: v.ladders, Kinds: v.chosen, Steps: v.steps, Clock: v.clock, Zone: v.zone(), Interrupted: in.interrupted}
	if v.filter != nil {
		view.Filter, view.Chosen = v.filter.String(), v.passed
	}
	write := report.Pcap
	if v.list {
		write = report.PcapList
	}
	return write(v.out(), v.env.style(), view, r)
}

func (v *pcapVerb) zone() *time.Location {
	if v.utc {
		return time.UTC
	}
	return time.Local
}

// out is stdout, kept to ASCII where the locale is.
func (v *pcapVerb) out() io.Writer {
	if isUTF8(v.env.Getenv) {
		return v.env.Stdout
	}
	return report.ASCII(v.env.Stdout)
}

// faultKinds cost connections. The others can be part of what is meant to happen: a port
// where nobody listens, a path with a smaller MTU.
var faultKinds = []pcap.Kind{pcap.SYNRejectedPAWS, pcap.SYNRejectedSeq, pcap.SYNOnOpen, pcap.SYNUnanswered, pcap.RSTOutOfWindow, pcap.RetransmissionBackoff}

func (v *pcapVerb) faulty(r *pcap.Report) bool {
	return slices.ContainsFunc(r.Kinds, func(k pcap.KindCount) bool {
		return k.Count > 0 && (len(v.chosen) > 0 || slices.Contains(faultKinds, k.Kind))
	})
}

// failed is why a capture could not be read.
func (in *captureInput) failed(err error) error { return fmt.Errorf("%s: %w", in.name, err) }
