package series

import (
	"math"
	"slices"
	"strconv"
)

// curve is points in the order of their steps.
type curve struct {
	stage, name string
	labels      map[string]string
	x           []int64
	y           []float64
	thin        int // every second point was left out so often
}

func (c *curve) add(x int64, y float64) {
	if math.IsNaN(y) || math.IsInf(y, 0) {
		return
	}
	n := len(c.x)
	if n == 0 || x > c.x[n-1] {
		c.x, c.y = append(c.x, x), append(c.y, y)
		if n+1 > maxPoints {
			c.halve()
		}
		return
	}
	at, there := slices.BinarySearch(c.x, x)
	if there {
		c.y[at] = y
		return
	}
	if c.thin > 0 {
		return
	}
	c.x, c.y = slices.Insert(c.x, at, x), slices.Insert(c.y, at, y)
}

func (c *curve) halve() {
	c.thin++
	k := 0
	for i := 0; i < len(c.x); i += 2 {
		c.x[k], c.y[k] = c.x[i], c.y[i]
		k++
	}
	c.x, c.y = c.x[:k], c.y[:k]
}

// A Curve is a curve for the page. Where it has more points than were asked for, Y is the mean of those that a point stands
// for, and Low and High what they lie between.
type Curve struct {
	Stage  string            `json:"stage"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	X      []int64           `json:"x"`
	Y      []float64         `json:"y"`
	Low    []float64         `json:"low,omitempty"`
	High   []float64         `json:"high,omitempty"`
}

func (c *curve) view(points int) Curve {
	v := Curve{Stage: c.stage, Name: c.name, Labels: c.labels}
	if len(c.x) <= points {
		v.X, v.Y = slices.Clone(c.x), make([]float64, len(c.y))
		for i, y := range c.y {
			v.Y[i] = number(y)
		}
		return v
	}
	for i := range points {
		from, to := i*len(c.x)/points, (i+1)*len(c.x)/points
		sum := 0.0
		for _, y := range c.y[from:to] {
			sum += y
		}
		v.X, v.Y = append(v.X, c.x[to-1]), append(v.Y, number(sum/float64(to-from)))
		v.Low, v.High = append(v.Low, number(slices.Min(c.y[from:to]))), append(v.High, number(slices.Max(c.y[from:to])))
	}
	return v
}

// number is v with six digits, which is what a curve can show; 0 for what is none.
func number(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 6, 64), 64)
	if err != nil {
		return v
	}
	return short
}
