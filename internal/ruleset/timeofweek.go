package ruleset

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/natkit/natkit/internal/nat"
)

// TimeCondition asks for times of UTC: seconds of the day and days of the week, or, with Not, for others. Each list that
// is empty stands for all; with Not one of them is.
type TimeCondition struct {
	Hours []nat.Hours
	Days  []time.Weekday
	Not   bool
}

func (c TimeCondition) judge(*Packet) answer { return maybe }

func (c TimeCondition) plain(m *nat.Match, _ bool) bool {
	for _, h := range c.Hours {
		if h.First%60 != 0 || (h.Last+1)%60 != 0 {
			return false
		}
	}
	if c.Not {
		m.NotHours, m.NotDays = nat.Union(m.NotHours, c.Hours), nat.Union(m.NotDays, c.Days)
		return true
	}
	both, ok := (&nat.Match{Hours: m.Hours, Days: m.Days}).And(&nat.Match{Hours: c.Hours, Days: c.Days})
	m.Hours, m.Days = both.Hours, both.Days
	return ok
}

const lastSecond = 24*60*60 - 1

// times adds a condition on times; text is its own. A range that ends with the first second of a minute is taken as one
// that ends before it, as people mean it, and Nearly says so.
func (m *Match) times(c TimeCondition, text string) {
	var hours []nat.Hours
	for _, h := range c.Hours {
		if h.Last%60 == 0 && (h.Last > h.First || len(c.Hours) > 1) {
			m.Nearly = nat.Union(m.Nearly, []string{fmt.Sprintf("ends at %02d:%02d, one second earlier", h.Last/3600, h.Last/60%60)})
			if h.Last == h.First {
				continue
			}
			h.Last--
		}
		hours = append(hours, h)
	}
	if c.Hours = hours; len(c.Days) == 7 && !c.Not {
		c.Days = nil
	}
	m.asks(c, text)
}

// hoursBetween are the seconds from one to another one, over midnight where that is the earlier one; all where both are
// the same, as of xt_time (time_mt).
func hoursBetween(first, last uint32) []nat.Hours {
	switch {
	case first == last, first == 0 && last == lastSecond:
		return nil
	case first <= last:
		return []nat.Hours{{First: first, Last: last}}
	}
	return []nat.Hours{{First: 0, Last: last}, {First: first, Last: lastSecond}}
}

// timesXT reads struct xt_time_info: dates, seconds of the day, days of the month and of the week, flags
// (include/uapi/linux/netfilter/xt_time.h). Bit 1 of the days of the week is Monday's, bit 7 Sunday's.
func (m *Match) timesXT(data []byte) (known bool) {
	const everyMonthday, everyDay, size = 0xfffffffe, 0xfe, 22
	if len(data) < size {
		return false
	}
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(data[at:]) }
	if u32(0) != 0 || u32(4) < math.MaxInt32 || u32(16)&everyMonthday != everyMonthday || data[20]&everyDay == 0 || data[21] != 0 {
		return false
	}
	c := TimeCondition{Hours: hoursBetween(u32(8), u32(12))}
	for day := range uint(7) {
		if data[20]&everyDay != everyDay && data[20]>>(day+1)&1 == 1 {
			c.Days = append(c.Days, time.Weekday((day+1)%7))
		}
	}
	m.times(c, "-m time")
	return true
}

// clockOptions are those of the match time of iptables, while they are read.
type clockOptions struct {
	start, stop string
	days        string
	notDays     bool
	asked       bool
}

// condition is what they ask for.
func (o *clockOptions) condition() (c TimeCondition, not TimeCondition, err error) {
	first, last := uint32(0), uint32(lastSecond)
	if o.start != "" {
		first, err = secondOf(o.start)
	}
	if o.stop != "" && err == nil {
		last, err = secondOf(o.stop)
	}
	c.Hours = hoursBetween(first, last)
	if o.days == "" || err != nil {
		return c, not, err
	}
	days, err := weekdaysOf(strings.Split(o.days, ","))
	if o.notDays {
		return c, TimeCondition{Days: days, Not: true}, err
	}
	c.Days = days
	return c, not, err
}

// secondOf reads 08:30 and 08:30:15.
func secondOf(text string) (uint32, error) {
	parts, second := strings.Split(text, ":"), uint32(0)
	for i := range 3 {
		n, most := uint64(0), []uint64{23, 59, 59}[i]
		if i < len(parts) {
			var err error
			if n, err = strconv.ParseUint(parts[i], 10, 8); err != nil || n > most {
				return 0, fmt.Errorf("%q is not a time of the day", text)
			}
		}
		second = second*60 + uint32(n)
	}
	if len(parts) < 2 || len(parts) > 3 {
		return 0, fmt.Errorf("%q is not a time of the day", text)
	}
	return second, nil
}

// weekdaysOf reads Mon, Monday, and the numbers of iptables, of which 1 is Monday's and 7 Sunday's.
func weekdaysOf(list []string) (all []time.Weekday, err error) {
	for _, text := range list {
		n, err := strconv.ParseUint(text, 10, 8)
		day := time.Weekday(n % 7)
		if err != nil || n > 7 {
			i := slices.IndexFunc([]time.Weekday{0, 1, 2, 3, 4, 5, 6}, func(d time.Weekday) bool {
				return len(text) >= 2 && strings.HasPrefix(strings.ToLower(d.String()), strings.ToLower(text))
			})
			if i < 0 {
				return nil, fmt.Errorf("%q is not a day of the week", text)
			}
			day = time.Weekday(i)
		}
		if !slices.Contains(all, day) {
			all = append(all, day)
		}
	}
	slices.Sort(all)
	return all, nil
}
