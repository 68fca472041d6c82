# SPDX-License-Identifier: Apache-2.0
#
# gnuplot: hits against memory. `data` has lines of: pages, lru, learned, optimum.
set terminal svg size 640,400 background "white"
set logscale x
set format x "%.0f"
set xlabel "pages of the cache"
set ylabel "blocks found"
set yrange [0:*]
set key left top
set grid
plot data using 1:4 with linespoints title "optimum", \
     data using 1:3 with linespoints title "learned", \
     data using 1:2 with linespoints title "lru"
