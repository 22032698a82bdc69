package cli

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/natkit/natkit/internal/disk"
	"github.com/natkit/natkit/internal/lab"
	"github.com/natkit/natkit/internal/lab/capture"
	"github.com/natkit/natkit/internal/lab/run"
)

// labPcapFlags say whether a run's packets are captured.
type labPcapFlags struct {
	dir   string
	snap  int
	limit fileSize
}

// fileSize is how large a file may become.
type fileSize int64

const minFileSize = 1 << 20

func (s *fileSize) Type() string   { return "SIZE" }
func (s *fileSize) String() string { return (*memorySize)(s).String() }

func (s *fileSize) Set(text string) error {
	n, ok := parseBytes(text)
	if !ok || n < minFileSize {
		return errors.New("must be the size of a file, 1M or more: 64M, 1G, …")
	}
	*s = fileSize(n)
	return nil
}

func (f *labPcapFlags) addFlags(flags *pflag.FlagSet) {
	f.snap, f.limit = capture.DefaultSnapLen, capture.DefaultMaxBytes
	flags.StringVar(&f.dir, "pcap", "", "write what each node's interfaces send and receive into pcapng files in `DIR`, one for each stage and side")
	flags.IntVar(&f.snap, "pcap-snaplen", f.snap, "with --pcap: keep `BYTES` of each packet, 0 for all; the usual has room for all headers")
	flags.Var(&f.limit, "pcap-size", "with --pcap: let no file grow beyond `SIZE`: 64M, 1G, …")
}

func (f *labPcapFlags) check(flags *pflag.FlagSet) error {
	switch {
	case f.dir == "" && (flags.Changed("pcap-snaplen") || flags.Changed("pcap-size")):
		return usagef("--pcap-snaplen and --pcap-size go with --pcap DIR")
	case f.dir == "" && flags.Changed("pcap"):
		return usagef("--pcap: expected the name of a folder")
	case f.snap != 0 && (f.snap < capture.MinSnapLen || f.snap > capture.MaxSnapLen):
		return usagef("--pcap-snaplen %d: must be from %d to %d, or 0", f.snap, capture.MinSnapLen, capture.MaxSnapLen)
	}
	return nil
}

// makeDir makes the folder, or tells before the run what keeps files out of it.
func (f *labPcapFlags) makeDir() error {
	if f.dir == "" {
		return nil
	}
	err := os.Mkdir(f.dir, 0o755)
	if errors.Is(err, os.ErrExist) {
		err = disk.MayReplace(filepath.Join(f.dir, "stage-node.pcapng"))
	}
	if err != nil {
		return fmt.Errorf("--pcap: %w", err)
	}
	return nil
}

func (f *labPcapFlags) options(version string) run.CaptureOptions {
	return run.CaptureOptions{Dir: f.dir, Options: capture.Options{
		SnapLen: cmp.Or(f.snap, capture.MaxSnapLen), MaxBytes: int64(f.limit), Version: version,
	}}
}

// failedCaptures is what went wrong with captures of a run that went well otherwise.
func failedCaptures(r *lab.Report) error {
	var errs []error
	for _, c := range r.Captures {
		if c.Error != "" {
			errs = append(errs, errors.New(c.Error))
		}
	}
	return errors.Join(errs...)
}
