package pipeline

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Instruments makes metrics and registers them. Their names are prl_<stage>_<what>_<unit>, with _total for counters, and are what
// alerts, dashboards and other people's tools are made of: they stay (deploy/prometheus/README.md lists them).
type Instruments struct {
	Registry prometheus.Registerer // nil keeps them to themselves
	errs     []error
}

// Counter makes a counter.
func (i *Instruments) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	i.Register(c)
	return c
}

// Gauge makes a gauge.
func (i *Instruments) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	i.Register(g)
	return g
}

// Histogram makes a histogram.
func (i *Instruments) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	i.Register(h)
	return h
}

// Register takes what was made elsewhere.
func (i *Instruments) Register(all ...prometheus.Collector) {
	if i.Registry == nil {
		return
	}
	for _, c := range all {
		i.errs = append(i.errs, i.Registry.Register(c))
	}
}

// Err is what went wrong so far.
func (i *Instruments) Err() error {
	if err := errors.Join(i.errs...); err != nil {
		return fmt.Errorf("register metrics: %w", err)
	}
	return nil
}

// Gauges is a gauge whose values are asked for whenever they are collected: what is not there any more is not told.
type Gauges struct {
	desc *prometheus.Desc
	read func(set func(value float64, labels ...string))
}

// NewGauges makes a gauge; read calls set for each of its values, with the values of the labels.
func NewGauges(name, help string, labels []string, read func(set func(value float64, labels ...string))) *Gauges {
	return &Gauges{prometheus.NewDesc(name, help, labels, nil), read}
}

// Describe implements prometheus.Collector.
func (g *Gauges) Describe(ch chan<- *prometheus.Desc) { ch <- g.desc }

// Collect implements prometheus.Collector.
func (g *Gauges) Collect(ch chan<- prometheus.Metric) {
	g.read(func(value float64, labels ...string) {
		for i, l := range labels {
			labels[i] = strings.ToValidUTF8(l, "")
		}
		ch <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, labels...)
	})
}
