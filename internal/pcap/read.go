package pcap

import "io"

// Read reads a whole capture and reports what it tells. A broken file is no error (see
// Each); the error says that r is no capture, that it could not be read, or which of
// the options is impossible.
func Read(r io.Reader, o Options) (*Report, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	stats, err := Each(r, func(p *Packet) error { return nil })
	if err != nil {
		return nil, err
	}
	report := &Report{Schema: Schema, Stats: stats}
	report.Limits.Memory = o.Memory
	return report, nil
}
