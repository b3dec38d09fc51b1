from rtbm.datasets.densities import *
