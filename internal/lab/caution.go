package lab

import "fmt"

const (
	// muchOther is the share of the CPUs from which on the work of others moves figures.
	muchOther = 0.10
	// tooFast is how much faster than the same without a fault a stage cannot be.
	tooFast = 1.25
)

// Caution says why the figures of a stage are not to be compared with those of others;
// empty where nothing speaks against it.
func (r *Report) Caution(s *StageReport) string {
	if s.OtherCPU > muchOther {
		return fmt.Sprintf("other work on this machine took %.0f %% of its CPUs", 100*s.OtherCPU)
	}
	nat := r.Stage("nat")
	if nat == nil || s.Name != "fixed" || nat.RequestsPerSecond <= 0 || s.RequestsPerSecond < tooFast*nat.RequestsPerSecond {
		return ""
	}
	return fmt.Sprintf("%.0f %% of stage nat, which does the same work: the machine was slower then", 100*s.RequestsPerSecond/nat.RequestsPerSecond)
}

// Cautious reports whether a stage's figures, or those of nat beside it, need caution.
func (r *Report) Cautious(s *StageReport) bool {
	nat := r.Stage("nat")
	return r.Caution(s) != "" || nat != nil && r.Caution(nat) != ""
}
